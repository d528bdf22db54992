//! The few system calls on TAP interfaces and packet sockets that have no safe form.
#![allow(unsafe_code)] // ioctl, bind, setsockopt and recvmsg with their C structures

use libc::{c_int, c_void};
use nix::errno::Errno;
use std::mem::size_of;
use std::os::fd::{AsRawFd, OwnedFd};

/// An interface's name as the kernel wants it.
fn request(name: &str) -> libc::ifreq {
    // SAFETY: `ifreq` is a C structure of numbers, for which all zeros is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero.
    for (to, from) in request
        .ifr_name
        .iter_mut()
        .zip(name.bytes().take(libc::IFNAMSIZ - 1))
    {
        *to = from as libc::c_char;
    }
    request
}

/// Makes the open TUN device the program's side of a TAP interface.
pub(super) fn attach_tap(fd: &OwnedFd, name: &str) -> Result<(), Errno> {
    let mut request = request(name);
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes one `ifreq`, which `request` is.
    let answer = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF, &mut request) };
    Errno::result(answer).map(drop)
}

/// Switches a TAP interface's carrier.
pub(super) fn set_carrier(fd: &OwnedFd, on: bool) -> Result<(), Errno> {
    let carrier = c_int::from(on);
    // SAFETY: TUNSETCARRIER reads one `int`, which `carrier` is.
    let answer = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETCARRIER, &carrier) };
    Errno::result(answer).map(drop)
}

/// An interface's flags (`IFF_UP` and so on), asked through any socket.
pub(super) fn flags(fd: &OwnedFd, name: &str) -> Result<c_int, Errno> {
    let mut request = request(name);
    // SAFETY: SIOCGIFFLAGS reads and writes one `ifreq`, which `request` is.
    let answer = unsafe { libc::ioctl(fd.as_raw_fd(), libc::SIOCGIFFLAGS, &mut request) };
    Errno::result(answer)?;
    // SAFETY: the kernel has filled in the flags; every bit pattern is a number.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    // Sixteen bits, all of them used.
    Ok(c_int::from(flags as u16))
}

fn option<T>(fd: &OwnedFd, name: c_int, value: &T) -> Result<(), Errno> {
    let at = std::ptr::from_ref(value).cast::<c_void>();
    // SAFETY: `at` and the length describe `value`, which outlives the call and is only read.
    let answer = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_PACKET,
            name,
            at,
            size_of::<T>() as libc::socklen_t,
        )
    };
    Errno::result(answer).map(drop)
}

/// Sets a packet socket up for all frames of an interface.
pub(super) fn bind_packet(fd: &OwnedFd, index: u32) -> Result<(), Errno> {
    let on: c_int = 1;
    option(fd, libc::PACKET_AUXDATA, &on)?;
    option(fd, libc::PACKET_VNET_HDR, &on)?;
    option(fd, libc::PACKET_IGNORE_OUTGOING, &on)?;
    let index = c_int::try_from(index).map_err(|_| Errno::ENODEV)?;
    option(
        fd,
        libc::PACKET_ADD_MEMBERSHIP,
        &libc::packet_mreq {
            mr_ifindex: index,
            mr_type: libc::PACKET_MR_PROMISC as libc::c_ushort,
            mr_alen: 0,
            mr_address: [0; 8],
        },
    )?;
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as libc::c_ushort,
        sll_protocol: (libc::ETH_P_ALL as u16).to_be(),
        sll_ifindex: index,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    // SAFETY: pointer and length describe `address`, which outlives the call and is only read.
    let answer = unsafe {
        libc::bind(
            fd.as_raw_fd(),
            std::ptr::from_ref(&address).cast::<libc::sockaddr>(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    };
    Errno::result(answer).map(drop)
}

/// A frame from a packet socket, and what the kernel left undone with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Bytes of the frame in the buffer.
    pub len: usize,
    /// The frame is longer than the buffer; the rest is lost.
    pub truncated: bool,
    /// A VLAN tag that was taken out of the frame: tag protocol and tag control information.
    pub tag: Option<(u16, u16)>,
    /// A checksum that is still to be made: where its sum starts, and where it goes, counted from
    /// there.
    pub checksum: Option<(usize, usize)>,
    /// The frame is several packets in one; payload bytes of each.
    pub segment: Option<usize>,
}

/// Bits of `virtio_net_hdr.flags` and `.gso_type` (Linux `virtio_net.h`).
const NEEDS_CHECKSUM: u8 = 1;
const NO_SEGMENTS: u8 = 0;

/// Room for one `tpacket_auxdata`, aligned as control messages are.
#[repr(C, align(8))]
struct Control([u8; 64]);

/// Receives a frame and its side information.
pub(super) fn receive(fd: &OwnedFd, frame: &mut [u8]) -> Result<Received, Errno> {
    // struct virtio_net_hdr: flags, gso_type, then four 16-bit numbers.
    let mut head = [0u8; 10];
    let mut control = Control([0; 64]);
    let mut parts = [
        libc::iovec {
            iov_base: head.as_mut_ptr().cast(),
            iov_len: head.len(),
        },
        libc::iovec {
            iov_base: frame.as_mut_ptr().cast(),
            iov_len: frame.len(),
        },
    ];
    // SAFETY: `msghdr` is a C structure of numbers and pointers, for which all zeros is a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len() as _;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len() as _;
    // SAFETY: `message` describes buffers that outlive the call and are borrowed by nobody else.
    let got = unsafe { libc::recvmsg(fd.as_raw_fd(), &mut message, libc::MSG_DONTWAIT) };
    let got = usize::try_from(Errno::result(got)?).unwrap_or(0);
    let [flags, kind, _, _, size @ .., s0, s1, o0, o1] = head;
    let number = |low, high| usize::from(u16::from_ne_bytes([low, high]));
    let mut received = Received {
        len: got.saturating_sub(head.len()).min(frame.len()),
        truncated: message.msg_flags & libc::MSG_TRUNC != 0,
        tag: None,
        checksum: (flags & NEEDS_CHECKSUM != 0).then(|| (number(s0, s1), number(o0, o1))),
        segment: (kind != NO_SEGMENTS).then(|| usize::from(u16::from_ne_bytes(size))),
    };
    // SAFETY: `message` is as the kernel filled it in, its control buffer still there.
    let mut part = unsafe { libc::CMSG_FIRSTHDR(&message) };
    while !part.is_null() {
        // SAFETY: a non-null result of CMSG_FIRSTHDR or CMSG_NXTHDR points at a whole header inside
        // the control buffer, which is aligned for it.
        let header = unsafe { *part };
        let whole = size_of::<libc::cmsghdr>() + size_of::<libc::tpacket_auxdata>();
        let ours = header.cmsg_level == libc::SOL_PACKET
            && header.cmsg_type == libc::PACKET_AUXDATA
            && header.cmsg_len as usize >= whole;
        if ours {
            // SAFETY: the message is long enough for its data to be this structure of numbers.
            let data = unsafe {
                libc::CMSG_DATA(part)
                    .cast::<libc::tpacket_auxdata>()
                    .read_unaligned()
            };
            if data.tp_status & libc::TP_STATUS_VLAN_VALID != 0 {
                let named = data.tp_status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
                let protocol = if named { data.tp_vlan_tpid } else { 0x8100 };
                received.tag = Some((protocol, data.tp_vlan_tci));
            }
        }
        // SAFETY: as for the first one; `part` is the one before.
        part = unsafe { libc::CMSG_NXTHDR(&message, part) };
    }
    Ok(received)
}
