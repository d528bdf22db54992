//! Wires to the world: a TAP interface, or any interface through a packet socket.
//!
//! Opened before the data thread starts, used by it alone. Each look costs a system call, so that
//! after one that found nothing the next is a little later; a turn takes a bounded number of frames
//! (the engine's budget). What the machine sends without checksums or in one piece for several
//! packets, as it does between virtual interfaces, is finished here: checksums are made, packets
//! are cut, VLAN tags that travelled beside a frame are put back.
//!
//! Towards the world a frame waits while the interface's queue is full. What lies behind that
//! queue may still drop, as any cable's far end.

use super::{Delivery, Wire, WireError};
use crate::data::offload;
use pollux_bus::netdev::{PacketSocket, Received, Tap};
use pollux_mempool::cycles;
use std::io;
use std::time::Duration;

/// Longest frame that an interface hands over: several packets in one, headers and a tag.
const ROOM: usize = 65_536 + 64;
/// Looks in vain are at least so far apart.
const PAUSE_US: u64 = 10;
/// Frames that are thrown away at most when the port comes up.
const STALE: usize = 8192;
/// How often the far end's link state is asked for.
const LINK_US: u64 = 50_000;

enum End {
    Tap(Tap),
    Packet(PacketSocket),
}

/// Packets that came as one.
struct Cut {
    header: usize,
    mss: usize,
    next: usize,
}

/// A wire to an interface.
pub(super) struct InterfaceWire {
    name: String,
    end: End,
    /// What was received last.
    buffer: Vec<u8>,
    len: usize,
    /// The frame to be handed over, when it is not what was received.
    shaped: Vec<u8>,
    cut: Option<Cut>,
    /// What is handed over.
    ready: Ready,
    /// CPU counts.
    pause: u64,
    link_pause: u64,
    next_look: u64,
    next_link: u64,
    up: bool,
    /// The near end, once somebody has said.
    near: Option<bool>,
    lost: u64,
    problem: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Ready {
    Nothing,
    Buffer,
    Shaped,
}

impl InterfaceWire {
    pub fn tap(name: &str) -> Result<Self, WireError> {
        let tap = Tap::open(name).map_err(WireError::Interface)?;
        Ok(Self::new(name, End::Tap(tap)))
    }

    pub fn packet(name: &str) -> Result<Self, WireError> {
        let socket = PacketSocket::open(name).map_err(WireError::Interface)?;
        Ok(Self::new(name, End::Packet(socket)))
    }

    fn new(name: &str, end: End) -> Self {
        let per_us = (cycles::frequency() / 1_000_000).max(1);
        let mut wire = Self {
            name: name.to_owned(),
            end,
            buffer: vec![0; ROOM],
            len: 0,
            shaped: Vec::new(),
            cut: None,
            ready: Ready::Nothing,
            pause: PAUSE_US * per_us,
            link_pause: LINK_US * per_us,
            next_look: 0,
            next_link: 0,
            up: false,
            near: None,
            lost: 0,
            problem: None,
        };
        wire.up = wire.ask();
        wire
    }

    /// Whether the interface is up.
    fn ask(&mut self) -> bool {
        let up = match &self.end {
            End::Tap(tap) => tap.is_up(),
            End::Packet(socket) => socket.is_up(),
        };
        up.unwrap_or_else(|why| {
            self.problem = Some(format!("interface {}: {why}", self.name));
            false
        })
    }

    #[cold]
    fn lose(&mut self, why: &dyn std::fmt::Display) {
        self.lost += 1;
        self.problem = Some(format!(
            "interface {}: {} frames lost, the last one because: {why}",
            self.name, self.lost
        ));
    }

    fn receive(&mut self) -> io::Result<Received> {
        match &self.end {
            End::Tap(tap) => Ok(Received {
                len: tap.receive(&mut self.buffer)?,
                ..Received::default()
            }),
            End::Packet(socket) => socket.receive(&mut self.buffer),
        }
    }

    /// Throws away what the machine sent while the port was down: a cable does not keep it.
    fn forget(&mut self) {
        self.ready = Ready::Nothing;
        self.cut = None;
        for _ in 0..STALE {
            if self.receive().is_err() {
                break;
            }
        }
    }

    /// Fetches a frame. False when there is none.
    fn fetch(&mut self) -> bool {
        let received = match self.receive() {
            Ok(received) => received,
            Err(why) => {
                let kind = why.kind();
                if kind != io::ErrorKind::WouldBlock && kind != io::ErrorKind::Interrupted {
                    // Down or gone: the link says so soon.
                    self.next_link = 0;
                }
                return false;
            }
        };
        self.len = received.len;
        if received.truncated {
            self.lose(&format_args!("it is longer than {ROOM} bytes"));
            return true;
        }
        let plain =
            received.tag.is_none() && received.checksum.is_none() && received.segment.is_none();
        self.ready = if plain {
            Ready::Buffer
        } else {
            self.finish(received)
        };
        true
    }

    /// Does what the machine left undone.
    fn finish(&mut self, received: Received) -> Ready {
        self.shaped.clear();
        self.shaped
            .extend_from_slice(self.buffer.get(..self.len).unwrap_or_default());
        // Before the tag: places are counted in the frame without it.
        if let (Some((start, offset)), None) = (received.checksum, received.segment) {
            if !offload::finish_checksum(&mut self.shaped, start, offset) {
                self.lose(&"its checksum was to be made outside of it");
                return Ready::Nothing;
            }
        }
        if let Some((protocol, tci)) = received.tag {
            offload::insert_vlan(&mut self.shaped, tci, protocol == 0x88a8);
        }
        let Some(mss) = received.segment else {
            return Ready::Shaped;
        };
        let Some(header) = offload::header_len(&self.shaped).filter(|_| mss > 0) else {
            self.lose(&"it is several packets in one of a kind that is not known here");
            return Ready::Nothing;
        };
        // What is cut lies in the buffer, the pieces are made beside it.
        self.len = self.shaped.len().min(self.buffer.len());
        for (to, from) in self.buffer.iter_mut().zip(&self.shaped) {
            *to = *from;
        }
        self.cut = Some(Cut {
            header,
            mss,
            next: 0,
        });
        self.slice()
    }

    /// Makes the next piece of several packets in one.
    fn slice(&mut self) -> Ready {
        let Some(cut) = &mut self.cut else {
            return Ready::Nothing;
        };
        let whole = self.buffer.get(..self.len).unwrap_or_default();
        let parts = whole.split_at_checked(cut.header);
        let made = parts.is_some_and(|(header, payload)| {
            offload::segment(header, payload, cut.mss, cut.next, &mut self.shaped)
        });
        if !made {
            self.cut = None;
            return Ready::Nothing;
        }
        cut.next += 1;
        Ready::Shaped
    }
}

impl Wire for InterfaceWire {
    fn what(&self) -> String {
        match &self.end {
            End::Tap(_) => format!("TAP interface {}", self.name),
            End::Packet(_) => format!("interface {}", self.name),
        }
    }

    fn brings(&self) -> bool {
        true
    }

    fn wants_frames(&self) -> bool {
        true
    }

    fn peek(&mut self, now: u64) -> Option<&[u8]> {
        while self.ready == Ready::Nothing {
            if now < self.next_look {
                return None;
            }
            if !self.fetch() {
                self.next_look = now.saturating_add(self.pause);
                return None;
            }
        }
        match self.ready {
            Ready::Shaped => Some(&self.shaped),
            _ => self.buffer.get(..self.len),
        }
    }

    fn advance(&mut self) {
        self.ready = match &self.cut {
            Some(_) => self.slice(),
            None => Ready::Nothing,
        };
    }

    fn remaining(&self) -> Option<u64> {
        None
    }

    fn send(&mut self, frame: &[u8], _time: Duration) -> Delivery {
        let sent = match &self.end {
            End::Tap(tap) => tap.send(frame),
            End::Packet(socket) => socket.send(frame),
        };
        match sent {
            Ok(()) => Delivery::Taken,
            Err(why) if why.kind() == io::ErrorKind::WouldBlock => Delivery::Wait,
            Err(why) => {
                self.next_link = 0;
                self.lose(&why);
                Delivery::Lost
            }
        }
    }

    fn flush(&mut self) {}

    fn error(&self) -> Option<String> {
        self.problem.clone()
    }

    fn link(&mut self, now: u64) -> bool {
        if now >= self.next_link {
            self.next_link = now.saturating_add(self.link_pause);
            self.up = self.ask();
        }
        self.up
    }

    fn tell_link(&mut self, up: bool) {
        if self.near.replace(up) == Some(up) {
            return;
        }
        if up {
            self.forget();
        }
        if let End::Tap(tap) = &self.end {
            if let Err(why) = tap.set_carrier(up) {
                tracing::debug!(%why, interface = self.name, "the machine cannot be told of a carrier");
            }
        }
    }
}
