//! Receiving bytes and the descriptors that came with them.
//!
//! A message may carry descriptors that nobody asked for, more than fit, or more than this process
//! may have open. Whatever the kernel has installed is owned at once here, so that a peer cannot
//! make this process leak descriptors until it has none left.
#![allow(unsafe_code)] // control messages are read from a raw buffer

use std::io::Error;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// The most descriptors that the kernel lets one message carry (SCM_MAX_FD).
const MOST: usize = 253;

/// Room for one control message with [`MOST`] descriptors, aligned as its header must be.
#[repr(C, align(8))]
struct Control([u8; 1056]);

const _: () = assert!(size_of::<libc::cmsghdr>() + MOST * size_of::<RawFd>() <= 1056);

/// What one call brought.
#[derive(Debug, Default)]
pub(crate) struct Received {
    /// Bytes; zero at the end of the stream.
    pub len: usize,
    /// Descriptors, closed on exec.
    pub fds: Vec<OwnedFd>,
    /// The message was longer than the buffer, or descriptors were lost.
    pub cut: bool,
}

/// Receives into `bytes` without waiting.
///
/// # Errors
/// The kernel's; `WouldBlock` when there is nothing.
pub(crate) fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> Result<Received, Error> {
    let mut control = Control([0; 1056]);
    let mut slice = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: a msghdr is plain data, for which all zeros is a valid value.
    let mut header: libc::msghdr = unsafe { zeroed() };
    header.msg_iov = &raw mut slice;
    header.msg_iovlen = 1;
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = control.0.len();
    let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
    // SAFETY: the header points to `slice` and `control`, which live until after the call, and
    // gives their true lengths; `slice` points to `bytes`, borrowed mutably for the call.
    let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) };
    let Ok(len) = usize::try_from(got) else {
        return Err(Error::last_os_error());
    };
    let mut fds = Vec::new();
    // SAFETY: the kernel has filled the header and the control buffer it points to.
    let mut part = unsafe { libc::CMSG_FIRSTHDR(&raw const header) };
    while !part.is_null() {
        // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR give a header that lies wholly in the buffer.
        let (level, kind, all) =
            unsafe { ((*part).cmsg_level, (*part).cmsg_type, (*part).cmsg_len) };
        if level == libc::SOL_SOCKET && kind == libc::SCM_RIGHTS {
            // SAFETY: the pointer is valid as above; the macro only adds to it.
            let data = unsafe { libc::CMSG_DATA(part) };
            let before = data as usize - part as usize;
            let count = all.saturating_sub(before) / size_of::<RawFd>();
            for index in 0..count.min(MOST) {
                // SAFETY: the kernel says that `count` descriptors lie here, within the buffer.
                let raw = unsafe { data.cast::<RawFd>().add(index).read_unaligned() };
                // SAFETY: the kernel has just made this descriptor for us; nobody else knows its
                // number, and it is taken exactly once.
                fds.push(unsafe { OwnedFd::from_raw_fd(raw) });
            }
        }
        // SAFETY: `part` came from these macros on this header.
        part = unsafe { libc::CMSG_NXTHDR(&raw const header, part) };
    }
    let cut = header.msg_flags & (libc::MSG_CTRUNC | libc::MSG_TRUNC) != 0;
    Ok(Received { len, fds, cut })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{
        AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, sendmsg, socketpair,
    };
    use std::io::{ErrorKind, IoSlice};
    use std::os::fd::AsFd;

    fn pair(kind: SockType) -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::Unix, kind, None, SockFlag::SOCK_CLOEXEC).unwrap()
    }

    fn send(to: &OwnedFd, bytes: &[u8], copies: usize, what: &OwnedFd) {
        let raw = vec![what.as_raw_fd(); copies];
        let rights = [ControlMessage::ScmRights(&raw)];
        let control = if copies == 0 { &[][..] } else { &rights[..] };
        let sent = sendmsg::<()>(
            to.as_raw_fd(),
            &[IoSlice::new(bytes)],
            control,
            MsgFlags::empty(),
            None,
        );
        assert_eq!(sent, Ok(bytes.len()));
    }

    #[test]
    fn descriptors_arrive_with_their_bytes() {
        let (a, b) = pair(SockType::Stream);
        send(&a, b"one", 0, &a);
        send(&a, b"two", 253, &a);
        let mut bytes = [0; 3];
        let first = receive(b.as_fd(), &mut bytes).unwrap();
        assert_eq!((first.len, first.fds.len(), &bytes), (3, 0, b"one"));
        let second = receive(b.as_fd(), &mut bytes).unwrap();
        assert_eq!((second.len, second.fds.len(), &bytes), (3, 253, b"two"));
        assert!(!second.cut);
        let empty = receive(b.as_fd(), &mut bytes).unwrap_err();
        assert_eq!(empty.kind(), ErrorKind::WouldBlock);
        // Each of the received ones keeps this end open too.
        drop((a, second));
        assert_eq!(receive(b.as_fd(), &mut bytes).unwrap().len, 0);
    }

    #[test]
    fn received_descriptors_close_with_their_owner() {
        let (a, b) = pair(SockType::Stream);
        let (watched, witness) = pair(SockType::Stream);
        send(&a, b"x", 16, &watched);
        drop(watched);
        let mut bytes = [0; 1];
        let got = receive(b.as_fd(), &mut bytes).unwrap();
        // The other end is still open in what was received.
        let open = receive(witness.as_fd(), &mut bytes).unwrap_err();
        assert_eq!(open.kind(), ErrorKind::WouldBlock);
        drop(got);
        assert_eq!(receive(witness.as_fd(), &mut bytes).unwrap().len, 0);
    }

    #[test]
    fn a_longer_packet_shows() {
        let (a, b) = pair(SockType::SeqPacket);
        send(&a, b"longer", 2, &a);
        let mut bytes = [0; 3];
        let got = receive(b.as_fd(), &mut bytes).unwrap();
        assert!(got.cut);
        assert_eq!(got.fds.len(), 2);
    }
}
