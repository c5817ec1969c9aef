//! Records on a local socket, and the descriptors that travel with them.

use std::{
    io::{IoSlice, IoSliceMut},
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
};

use nix::{
    errno::Errno,
    libc,
    sys::socket::{ControlMessage, MsgFlags, recvmsg, sendmsg},
};

/// A record that came.
#[derive(Debug)]
pub(crate) struct Received {
    pub len: usize,
    pub descriptors: Vec<OwnedFd>,
    /// Descriptors were lost: there was no room for them in the table of this process.
    pub truncated: bool,
    /// Who sent it, where the socket is told.
    pub pid: Option<u32>,
}

/// Sends one record.
pub(crate) fn send(
    socket: impl AsFd,
    record: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> nix::Result<()> {
    let numbers: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&numbers)];
    let control = if numbers.is_empty() { &[][..] } else { &rights[..] };
    let slices = [IoSlice::new(record)];
    let fd = socket.as_fd().as_raw_fd();
    loop {
        match sendmsg::<()>(fd, &slices, control, MsgFlags::MSG_NOSIGNAL, None) {
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Waits for one record; `None` when there will be none.
pub(crate) fn receive(
    socket: impl AsFd,
    buffer: &mut [u8],
    most_descriptors: usize,
) -> nix::Result<Option<Received>> {
    // A header and the credentials, a header and the descriptors, aligned.
    let room = (16 + 16) + (16 + size_of::<RawFd>() * most_descriptors).next_multiple_of(8);
    let mut control = vec![0; room];
    let fd = socket.as_fd().as_raw_fd();
    let (len, flags) = loop {
        let slices = &mut [IoSliceMut::new(buffer)];
        match recvmsg::<()>(fd, slices, Some(&mut control), MsgFlags::MSG_CMSG_CLOEXEC) {
            Ok(message) => break (message.bytes, message.flags),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    };
    // First of all, so that descriptors are closed whatever else is wrong.
    let (descriptors, pid) = open_control(&control);
    if flags.contains(MsgFlags::MSG_TRUNC) {
        return Err(Errno::EMSGSIZE);
    }
    if len == 0 {
        return Ok(None);
    }
    let truncated = flags.contains(MsgFlags::MSG_CTRUNC);
    Ok(Some(Received { len, descriptors, truncated, pid }))
}

/// What the kernel has put beside a record. Read by hand: when descriptors were lost, those that
/// were not must be closed, and libraries give none at all then.
fn open_control(mut control: &[u8]) -> (Vec<OwnedFd>, Option<u32>) {
    let (mut descriptors, mut pid) = (Vec::new(), None);
    // Each part: length with the header (64 bits), level and type (32 bits each), data, padding.
    while let Some(len) = long(control, 0).and_then(|len| usize::try_from(len).ok()) {
        let Some(part) = control.get(16..len) else { break };
        let kind =
            (word(control, 8).map(u32::cast_signed), word(control, 12).map(u32::cast_signed));
        match kind {
            (Some(libc::SOL_SOCKET), Some(libc::SCM_RIGHTS)) => {
                let (numbers, _) = part.as_chunks();
                descriptors.extend(numbers.iter().map(|&number| {
                    // SAFETY: the kernel has just put this descriptor into the table of this
                    // process and told nobody else.
                    unsafe { OwnedFd::from_raw_fd(RawFd::from_le_bytes(number)) }
                }));
            }
            (Some(libc::SOL_SOCKET), Some(libc::SCM_CREDENTIALS)) => pid = word(part, 0),
            _ => {}
        }
        control = control.get(len.next_multiple_of(8)..).unwrap_or_default();
    }
    (descriptors, pid)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_le_bytes)
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().copied().map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{
        AddressFamily, SockFlag, SockType, setsockopt, socketpair, sockopt::PassCred,
    };

    fn pair() -> (OwnedFd, OwnedFd) {
        let flags = SockFlag::SOCK_CLOEXEC;
        socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap()
    }

    #[test]
    fn descriptors_and_the_sender_come_with_a_record() {
        let (one, two) = pair();
        setsockopt(&two, PassCred, &true).unwrap();
        let (file, _) = pair();
        send(&one, b"hello", &vec![file.as_fd(); 250]).unwrap();
        let mut buffer = vec![0; 4096];
        let received = receive(&two, &mut buffer, 250).unwrap().unwrap();
        assert_eq!(&buffer[..received.len], b"hello");
        assert_eq!(received.descriptors.len(), 250);
        assert_eq!((received.pid, received.truncated), (Some(std::process::id()), false));
        // No room for the second: the first is closed all the same, and there is a sign.
        send(&one, b"more", &[file.as_fd(); 4]).unwrap();
        let received = receive(&two, &mut buffer, 2).unwrap().unwrap();
        assert!(received.truncated && received.descriptors.len() < 4);
        send(&one, &vec![0; buffer.len() + 1], &[]).unwrap();
        assert_eq!(receive(&two, &mut buffer, 2).unwrap_err(), Errno::EMSGSIZE);
        drop(one);
        assert!(receive(&two, &mut buffer, 2).unwrap().is_none());
    }
}
