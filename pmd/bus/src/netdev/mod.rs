//! Network interfaces of this machine as ends of an emulated cable: whole Ethernet frames in and
//! out, of a TAP interface ([`Tap`]) or through a packet socket on any interface
//! ([`PacketSocket`]).
//!
//! Both are opened by a control thread and then used by one thread, which never blocks here: what
//! cannot be done at once is [`std::io::ErrorKind::WouldBlock`]. Neither changes an interface's
//! settings; setting one up is for whoever owns the machine. Closing is dropping.
//!
//! The system calls without a safe form are in `sys`.

mod sys;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
use nix::sys::stat::Mode;
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd};

pub use sys::Received;

/// Longest interface name.
pub const MAX_NAME: usize = 15;

/// Why an interface cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("interface {name}: {what}")]
pub struct NetdevError {
    /// The interface.
    pub name: String,
    /// What is wrong and what would do.
    pub what: String,
}

fn refuse(name: &str, what: impl Into<String>) -> NetdevError {
    NetdevError {
        name: name.to_owned(),
        what: what.into(),
    }
}

fn check(name: &str) -> Result<(), NetdevError> {
    let printable = |c: char| c.is_ascii_graphic() && c != '/' && c != ':';
    if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(printable) {
        return Err(refuse(
            name,
            format!("is no name of an interface; `ip link` lists them, 1 to {MAX_NAME} characters"),
        ));
    }
    Ok(())
}

/// A socket for questions about interfaces.
fn questions(name: &str) -> Result<OwnedFd, NetdevError> {
    let flags = SockFlag::SOCK_CLOEXEC;
    socket(AddressFamily::Unix, SockType::Datagram, flags, None)
        .map_err(|errno| refuse(name, format!("no socket to ask about it: {errno}")))
}

/// A TAP interface from its program's side: what the machine sends to the interface is received
/// here, what is sent here arrives at the machine.
///
/// The machine is told of no offloads: it hands over whole packets with checksums and VLAN tags in
/// place.
#[derive(Debug)]
pub struct Tap {
    name: String,
    fd: OwnedFd,
    questions: OwnedFd,
}

impl Tap {
    /// Attaches to the TAP interface `name`. One that does not exist is made, if this program may,
    /// and is gone again when the last handle is.
    ///
    /// # Errors
    /// [`NetdevError`]: no TUN driver, no permission, somebody else is attached, not a TAP
    /// interface.
    pub fn open(name: &str) -> Result<Self, NetdevError> {
        check(name)?;
        let flags = OFlag::O_RDWR | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let fd = open("/dev/net/tun", flags, Mode::empty()).map_err(|errno| {
            let what = match errno {
                Errno::ENOENT | Errno::ENODEV => {
                    "/dev/net/tun is not there; load the driver with `sudo modprobe tun`".into()
                }
                Errno::EACCES | Errno::EPERM => {
                    "/dev/net/tun may not be opened by this user; `sudo chmod 666 /dev/net/tun` is \
                     its usual mode"
                        .into()
                }
                errno => format!("/dev/net/tun cannot be opened: {errno}"),
            };
            refuse(name, what)
        })?;
        let make = format!("sudo ip tuntap add dev {name} mode tap user $USER");
        sys::attach_tap(&fd, name).map_err(|errno| {
            let what = match errno {
                Errno::EPERM | Errno::EACCES => format!(
                    "does not exist and may not be made, or belongs to another user; make it with \
                     `{make}`"
                ),
                Errno::EBUSY => "another program is attached to it; stop that one, or use another \
                                 interface"
                    .into(),
                Errno::EINVAL => format!("exists and is no TAP interface; make one with `{make}`"),
                errno => format!("cannot be attached to: {errno}"),
            };
            refuse(name, what)
        })?;
        Ok(Self {
            name: name.to_owned(),
            fd,
            questions: questions(name)?,
        })
    }

    /// Whether the machine has the interface switched on (`ip link set NAME up`).
    ///
    /// # Errors
    /// The interface is gone.
    pub fn is_up(&self) -> io::Result<bool> {
        let flags = sys::flags(&self.questions, &self.name)?;
        Ok(flags & libc::IFF_UP != 0)
    }

    /// Tells the machine whether there is a carrier. Kernels before 5.0 cannot be told.
    ///
    /// # Errors
    /// As the kernel has them.
    pub fn set_carrier(&self, on: bool) -> io::Result<()> {
        Ok(sys::set_carrier(&self.fd, on)?)
    }

    /// The next frame; its length.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when there is none. Others: the interface is gone.
    pub fn receive(&self, frame: &mut [u8]) -> io::Result<usize> {
        Ok(nix::unistd::read(&self.fd, frame)?)
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when it is to be offered again. Others lose it: the interface
    /// is down or gone.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        nix::unistd::write(&self.fd, frame)?;
        Ok(())
    }
}

/// A packet socket: frames that arrive at an interface from outside, and frames sent out of it.
///
/// The interface is in promiscuous mode as long as the socket is open. What the machine itself
/// sends out of the interface is not seen.
#[derive(Debug)]
pub struct PacketSocket {
    name: String,
    fd: OwnedFd,
    questions: OwnedFd,
}

/// What the kernel puts before a frame, and wants before one: `struct virtio_net_hdr`.
const NO_OFFLOAD: [u8; 10] = [0; 10];

impl PacketSocket {
    /// Opens a socket on the interface `name`, which may be down.
    ///
    /// # Errors
    /// [`NetdevError`]: no such interface, no permission.
    pub fn open(name: &str) -> Result<Self, NetdevError> {
        check(name)?;
        let index = nix::net::if_::if_nametoindex(name).map_err(|_| {
            refuse(
                name,
                "there is no such interface here; `ip link` lists them, and each network \
                 namespace has its own",
            )
        })?;
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let (family, kind) = (AddressFamily::Packet, SockType::Raw);
        // Bound to the interface before anything is received: protocol 0 receives nothing.
        let fd = socket(family, kind, flags, None::<SockProtocol>).map_err(|errno| {
            let what = match errno {
                Errno::EPERM | Errno::EACCES => {
                    "packet sockets are for programs with CAP_NET_RAW; give it with \
                     `sudo setcap cap_net_raw+ep PROGRAM`, or run as root"
                        .into()
                }
                Errno::EAFNOSUPPORT => {
                    "the kernel has no packet sockets; load them with `sudo modprobe af_packet`"
                        .into()
                }
                errno => format!("no packet socket for it: {errno}"),
            };
            refuse(name, what)
        })?;
        sys::bind_packet(&fd, index).map_err(|errno| {
            refuse(name, format!("the packet socket cannot be set up: {errno}"))
        })?;
        Ok(Self {
            name: name.to_owned(),
            fd,
            questions: questions(name)?,
        })
    }

    /// Whether the interface is switched on and has a carrier.
    ///
    /// # Errors
    /// The interface is gone.
    pub fn is_up(&self) -> io::Result<bool> {
        let flags = sys::flags(&self.questions, &self.name)?;
        let both = libc::IFF_UP | libc::IFF_RUNNING;
        Ok(flags & both == both)
    }

    /// The next frame, and what the kernel left undone with it.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when there is none. Others: the interface is down or gone.
    pub fn receive(&self, frame: &mut [u8]) -> io::Result<Received> {
        Ok(sys::receive(&self.fd, frame)?)
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when it is to be offered again. Others lose it: longer than
    /// the interface's MTU, interface down or gone.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        use nix::sys::socket::{MsgFlags, sendmsg};
        let parts = [IoSlice::new(&NO_OFFLOAD), IoSlice::new(frame)];
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        match sendmsg::<()>(self.fd.as_raw_fd(), &parts, &[], flags, None) {
            // The interface's queue is full.
            Err(Errno::ENOBUFS) => Err(io::ErrorKind::WouldBlock.into()),
            Err(errno) => Err(errno.into()),
            Ok(_) => Ok(()),
        }
    }
}
