//! What `set verbose` shows: each burst and each packet in it, in the words of the format.
//!
//! For looking at packets, not for speed: lines are formatted on the core and printed by a
//! thread of their own. Without it the loop asks one question per burst.

use std::fmt::Write as _;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use pollux_mempool::mbuf::flags;
use pollux_mempool::{Burst, Mbuf};

use crate::output::Mac;

/// A stream's mouth.
#[derive(Clone, Debug)]
pub struct Talk {
    lines: Sender<String>,
    /// Name of the pool that packets come from.
    pub pool: String,
    /// Say what is received.
    pub rx: bool,
    /// Say what is sent.
    pub tx: bool,
}

/// The thread that prints.
#[derive(Debug)]
pub struct Printer {
    lines: Sender<String>,
    thread: JoinHandle<()>,
}

impl Printer {
    /// Starts it; `print` gets each text.
    ///
    /// # Errors
    /// The system refuses the thread.
    pub fn start(print: impl Fn(&str) + Send + 'static) -> std::io::Result<Self> {
        let (lines, texts): (_, Receiver<String>) = channel();
        let thread = std::thread::Builder::new()
            .name("verbose".into())
            .spawn(move || texts.iter().for_each(|t| print(&t)))?;
        Ok(Self { lines, thread })
    }

    /// A mouth for one stream, at a level: 1 received, 2 sent, above 2 both.
    pub fn talk(&self, pool: &str, level: u32) -> Option<Talk> {
        (level > 0).then(|| Talk {
            lines: self.lines.clone(),
            pool: pool.to_owned(),
            rx: level != 2,
            tx: level >= 2,
        })
    }

    /// Waits until all that streams said is printed; they must be gone.
    pub fn finish(self) {
        drop(self.lines);
        // A printer that panicked has nothing more to say.
        drop(self.thread.join());
    }
}

impl Talk {
    /// Says a burst.
    #[cold]
    pub fn burst(&self, place: (u16, u16), received: bool, burst: &Burst) {
        let mut text = format!(
            "port {}/queue {}: {} {} packets\n",
            place.0,
            place.1,
            if received { "received" } else { "sent" },
            burst.len()
        );
        for mbuf in burst {
            self.packet(&mut text, place.1, received, mbuf);
        }
        // Without a printer nobody listens.
        drop(self.lines.send(text));
    }

    fn packet(&self, text: &mut String, queue: u16, received: bool, mbuf: &Mbuf) {
        let data = mbuf.data();
        let address = |at: usize| -> Mac {
            Mac(data
                .get(at..at + 6)
                .and_then(|b| b.try_into().ok())
                .unwrap_or_default())
        };
        let h = Headers::of(data);
        let bits = mbuf.flags();
        _ = write!(
            text,
            "  src={} - dst={} - pool={} - type=0x{:04x} - length={} - nb_segs={}",
            address(6),
            address(0),
            self.pool,
            be16(data, 12).unwrap_or(0),
            mbuf.pkt_len(),
            mbuf.nb_segs()
        );
        if received && bits & flags::RX_RSS_HASH != 0 {
            _ = write!(
                text,
                " - RSS hash=0x{:x} - RSS queue=0x{queue:x}",
                mbuf.rss_hash()
            );
        }
        _ = write!(text, " - sw ptype: {} - l2_len={}", h.names, h.l2);
        if h.l3 > 0 {
            _ = write!(text, " - l3_len={}", h.l3);
        }
        if h.l4 > 0 {
            _ = write!(text, " - l4_len={}", h.l4);
        }
        let side = if received { "Receive" } else { "Send" };
        _ = write!(text, " - {side} queue=0x{queue:x}\n  ol_flags: ");
        if received {
            if bits & flags::RX_RSS_HASH != 0 {
                text.push_str("RTE_MBUF_F_RX_RSS_HASH ");
            }
            let sum = |good: u32, bad: u32| match (bits & good != 0, bits & bad != 0) {
                (true, _) => "GOOD",
                (_, true) => "BAD",
                _ => "UNKNOWN",
            };
            _ = write!(
                text,
                "RTE_MBUF_F_RX_L4_CKSUM_{} RTE_MBUF_F_RX_IP_CKSUM_{} RTE_MBUF_F_RX_OUTER_L4_CKSUM_UNKNOWN ",
                sum(flags::RX_L4_CKSUM_GOOD, flags::RX_L4_CKSUM_BAD),
                sum(flags::RX_IP_CKSUM_GOOD, flags::RX_IP_CKSUM_BAD)
            );
        }
        text.push('\n');
    }
}

/// What software finds in a frame; lengths 0 for layers that are not there.
struct Headers {
    /// Names, a blank behind each.
    names: String,
    l2: usize,
    l3: usize,
    l4: usize,
}

fn be16(data: &[u8], at: usize) -> Option<u16> {
    data.get(at..at + 2)
        .and_then(|b| b.try_into().ok())
        .map(u16::from_be_bytes)
}

impl Headers {
    fn of(data: &[u8]) -> Self {
        let mut h = Self {
            names: String::new(),
            l2: 14,
            l3: 0,
            l4: 0,
        };
        let mut kind = be16(data, 12).unwrap_or(0);
        let l2 = match kind {
            0x8100 | 0x88a8 => {
                let outer = kind;
                kind = be16(data, 16).unwrap_or(0);
                h.l2 = 18;
                if outer == 0x88a8 {
                    kind = be16(data, 20).unwrap_or(0);
                    h.l2 = 22;
                    "L2_ETHER_QINQ "
                } else {
                    "L2_ETHER_VLAN "
                }
            }
            0x0806 => "L2_ETHER_ARP ",
            _ => "L2_ETHER ",
        };
        h.names.push_str(l2);
        let rest = data.get(h.l2..).unwrap_or(&[]);
        match kind {
            0x0800 => h.ipv4(rest),
            0x86dd => h.ipv6(rest),
            _ => {}
        }
        h
    }

    fn ipv4(&mut self, ip: &[u8]) {
        let Some(first) = ip.first() else {
            return;
        };
        self.l3 = usize::from(first & 0xf) * 4;
        self.names.push_str(if self.l3 > 20 {
            "L3_IPV4_EXT "
        } else {
            "L3_IPV4 "
        });
        let fragment = be16(ip, 6).unwrap_or(0) & 0x3fff != 0;
        self.transport(
            ip.get(9).copied().unwrap_or(0),
            fragment,
            ip.get(self.l3..).unwrap_or(&[]),
        );
    }

    fn ipv6(&mut self, ip: &[u8]) {
        self.l3 = 40;
        self.names.push_str("L3_IPV6 ");
        self.transport(
            ip.get(6).copied().unwrap_or(0),
            false,
            ip.get(40..).unwrap_or(&[]),
        );
    }

    fn transport(&mut self, protocol: u8, fragment: bool, rest: &[u8]) {
        if fragment {
            self.names.push_str("L4_FRAG ");
            return;
        }
        let (name, length) = match protocol {
            6 => (
                "L4_TCP ",
                usize::from(rest.get(12).map_or(0, |b| b >> 4)) * 4,
            ),
            17 => ("L4_UDP ", 8),
            132 => ("L4_SCTP ", 12),
            1 => ("L4_ICMP ", 0),
            _ => return,
        };
        self.names.push_str(name);
        self.l4 = length;
    }
}
