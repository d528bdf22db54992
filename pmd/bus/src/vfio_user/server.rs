//! The server's loop: one client after the other, one message after the other.

use super::listener::Listener;
use super::memory::Trust;
use super::message::{Header, MAJOR, MAX_FDS, MAX_TRANSFER, MINOR, Version, command, flag};
use super::session::{Answer, No, Session};
use super::stream::{Broken, Incoming, Stop, Stream, Watch, next_client};
use crate::{BusError, Device};
use nix::errno::Errno;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

/// How to serve.
#[derive(Clone, Copy, Debug, Default)]
pub struct ServeOptions {
    /// Which memory of a client is taken.
    pub trust: Trust,
    /// Offer no page for mapping, so that every doorbell is a message: for clients that cannot map,
    /// for watching doorbells go by, and for measuring what mapping is worth.
    pub trap_all: bool,
}

/// How a client's session ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It closed its end.
    Left,
    /// It closed its end within a message; its process probably died.
    Vanished,
    /// The server was stopped.
    Stopped,
    /// It was shown out, for this reason.
    ShownOut(String),
}

/// What happens at a socket, for whoever keeps a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A client was let in; its process, if the kernel says so.
    Arrived(Option<i32>),
    /// A client was told that another one is served.
    TurnedAway,
    /// A request was refused.
    Refused {
        /// The command's number.
        command: u16,
        /// Why, in words.
        why: String,
    },
    /// The client is gone, and all that it gave is forgotten.
    Departed(Ending),
}

/// Serves `device` to one client after the other, until `stop` is raised. Runs on the caller's
/// thread; `log` is called from it.
///
/// # Errors
/// [`BusError::Os`] when the listening socket fails. No client can cause that.
pub fn serve(
    listener: &Listener,
    device: &Arc<dyn Device>,
    options: &ServeOptions,
    stop: &Stop,
    log: &mut dyn FnMut(Event),
) -> Result<(), BusError> {
    // One buffer for the server's life.
    let mut body = Vec::new();
    let mut door = VecDeque::new();
    loop {
        let waiting = door.pop_front();
        let next = match waiting {
            Some(socket) if !stop.is_raised() => Some(socket),
            _ => next_client(listener, stop)?,
        };
        let Some(socket) = next else {
            return Ok(());
        };
        let stream = Stream::new(socket);
        log(Event::Arrived(stream.peer()));
        let log = RefCell::new(&mut *log);
        let mut watch = Watch {
            listener,
            stop,
            door: &mut door,
            turned_away: &mut || (log.borrow_mut())(Event::TurnedAway),
        };
        let mut refused = |command, why| (log.borrow_mut())(Event::Refused { command, why });
        let broken = client(
            &stream,
            device,
            options,
            &mut body,
            &mut watch,
            &mut refused,
        );
        let ending = match broken {
            Broken::Closed { within: false } => Ending::Left,
            Broken::Closed { within: true } => Ending::Vanished,
            Broken::Stopped => Ending::Stopped,
            Broken::Nonsense(why) => Ending::ShownOut(why),
        };
        // The socket closes after the device has forgotten its client.
        drop(stream);
        (log.borrow_mut())(Event::Departed(ending));
    }
}

/// Serves one client; returns why it cannot go on.
fn client(
    stream: &Stream,
    device: &Arc<dyn Device>,
    options: &ServeOptions,
    body: &mut Vec<u8>,
    watch: &mut Watch<'_>,
    refused: &mut dyn FnMut(u16, String),
) -> Broken {
    let mut session: Option<Session<'_>> = None;
    loop {
        let incoming = match stream.receive(body, watch) {
            Ok(incoming) => incoming,
            Err(broken) => return broken,
        };
        let header = incoming.header;
        if header.flags & flag::TYPE != flag::COMMAND {
            return Broken::Nonsense(format!(
                "an answer to command {}, nothing was asked",
                header.command
            ));
        }
        let outcome = match (&mut session, header.command) {
            (None, command::VERSION) => version(body).and_then(|answer| {
                session = Some(Session::begin(device, options)?);
                Ok(answer)
            }),
            (None, _) => Err(No::new(Errno::EINVAL, "a command before the version")),
            (Some(session), _) => dispatch(session, incoming, body),
        };
        let silent = header.flags & flag::NO_REPLY != 0;
        let sent = match &outcome {
            Ok(_) | Err(_) if silent => Ok(()),
            Ok(answer) => {
                let size = answer.parts.iter().map(Vec::len).sum();
                let header = header.answer(size);
                let mut parts = vec![header.as_bytes()];
                parts.extend(answer.parts.iter().map(Vec::as_slice));
                let fd = answer
                    .window
                    .as_ref()
                    .and_then(|window| window.segment().fd());
                stream.send(&parts, fd, watch)
            }
            Err(no) => stream.send(&[header.refusal(no.errno as u32).as_bytes()], None, watch),
        };
        match outcome {
            Err(no) if !no.why.is_empty() => refused(header.command, no.why),
            _ => {}
        }
        if let Err(broken) = sent {
            return broken;
        }
        match &session {
            None => return Broken::Nonsense("it could not be let in".to_owned()),
            Some(session) if session.lost_memory() => {
                let text = "it took memory away that the device was using";
                return Broken::Nonsense(text.to_owned());
            }
            Some(_) => {}
        }
    }
}

fn dispatch(session: &mut Session<'_>, incoming: Incoming, body: &[u8]) -> Result<Answer, No> {
    let Incoming {
        header: Header { command, .. },
        fds,
        bad_fds,
    } = incoming;
    if bad_fds {
        return Err(No::new(
            Errno::EINVAL,
            format!("more than {MAX_FDS} descriptors in a message, or this process is out of them"),
        ));
    }
    let takes_fds = matches!(command, command::DMA_MAP | command::DEVICE_SET_IRQS);
    if !fds.is_empty() && !takes_fds {
        return Err(No::new(
            Errno::EINVAL,
            format!("{} descriptors with a command that takes none", fds.len()),
        ));
    }
    match command {
        command::DMA_MAP => session.map(body, fds),
        command::DMA_UNMAP => session.unmap(body),
        command::DEVICE_GET_INFO => session.device_info(body),
        command::DEVICE_GET_REGION_INFO => session.region_info(body),
        command::DEVICE_GET_IRQ_INFO => session.irq_info(body),
        command::DEVICE_SET_IRQS => session.set_irqs(body, fds),
        command::REGION_READ => session.read(body),
        command::REGION_WRITE => session.write(body),
        command::DEVICE_RESET => session.reset(body),
        command::VERSION => Err(No::new(Errno::EINVAL, "a second version")),
        other => Err(No::new(
            Errno::EOPNOTSUPP,
            format!("command {other} is not served"),
        )),
    }
}

/// Agrees on a version. The client's capabilities need no answer here: this side never asks it
/// for anything, and sends one descriptor at most.
fn version(body: &[u8]) -> Result<Answer, No> {
    let (asked, text) = Version::read_from_prefix(body)
        .map_err(|_| No::new(Errno::EINVAL, "a version without numbers"))?;
    if asked.major != MAJOR {
        return Err(No::new(
            Errno::EINVAL,
            format!(
                "protocol version {}.{}, this server speaks {MAJOR}.{MINOR}",
                asked.major, asked.minor
            ),
        ));
    }
    if !text.is_empty() && text.last() != Some(&0) {
        return Err(No::new(Errno::EINVAL, "capabilities without their end"));
    }
    let agreed = Version {
        major: MAJOR,
        minor: asked.minor.min(MINOR),
    };
    let capabilities = format!(
        "{{\"capabilities\":{{\"max_msg_fds\":{MAX_FDS},\"max_data_xfer_size\":{MAX_TRANSFER},\"max_dma_maps\":{}}}}}\0",
        super::memory::MAX_RANGES
    );
    Ok(Answer {
        parts: vec![agreed.as_bytes().to_vec(), capabilities.into_bytes()],
        window: None,
    })
}
