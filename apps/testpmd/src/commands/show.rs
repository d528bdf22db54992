//! `show`.

use std::time::Instant;

use crate::grammar::{All, Show, ShowConfig, ShowFw, ShowPort, Stats};
use crate::output::Mac;
use crate::output::fw_pages::FwPages;
use crate::output::nic::NicBlock;
use crate::output::port_info::{PortInfoBlock, RingLimits};
use crate::output::summary::{Summary, SummaryLine};
use crate::output::xstats::{QueueStats, XstatsBlock};
use crate::session::{Session, node_number};
use crate::settings::FRAME_OVERHEAD;

/// The driver's name in the output.
const DRIVER: &str = "mlx5_pollux";
/// Smallest MTU that IPv4 allows (RFC 791).
const MIN_MTU: u32 = 68;
/// Bytes of the Toeplitz key.
const HASH_KEY: u32 = 40;
/// What the driver spreads over several receive queues.
const RSS_TYPES: [&str; 6] = [
    "ipv4", "ipv4-tcp", "ipv4-udp", "ipv6", "ipv6-tcp", "ipv6-udp",
];

/// Runs it.
pub fn run(session: &mut Session, what: Show) {
    match what {
        Show::Port(ShowPort::Info { port }) => {
            for n in session.shown(port) {
                if let Some(block) = port_info(session, n) {
                    session.screen.text(block);
                }
            }
        }
        Show::Port(ShowPort::Stats { port }) => {
            for n in session.shown(port) {
                let block = nic_block(session, n);
                session.screen.text(block);
            }
        }
        Show::Port(ShowPort::Summary { port }) => {
            let numbers = session.shown(port);
            if !numbers.is_empty() {
                let block = summary(session, &numbers);
                session.screen.text(block);
            }
        }
        Show::Port(ShowPort::Xstats { port }) => {
            for n in session.shown(port) {
                if let Some(block) = xstats(session, n) {
                    session.screen.text(block);
                }
            }
        }
        Show::Fw(ShowFw::Pages { port, format }) => {
            for n in session.shown(port) {
                let Some(pages) = fw_pages(session, n) else {
                    continue;
                };
                match format {
                    None => session.screen.text(pages),
                    Some(_) => match serde_json::to_string(&pages) {
                        Ok(line) => session.screen.line(line),
                        Err(e) => session.screen.line(format!("Port {n}: no JSON: {e}")),
                    },
                }
            }
        }
        Show::Fwd(Stats::Stats(All::All)) => {
            let report = session.forward_report();
            session.screen.text(report);
        }
        Show::Config(ShowConfig::Fwd) => {
            let plan = session.plan();
            let banner = session.banner(&plan);
            session.screen.text(banner);
        }
        Show::Config(ShowConfig::Rxtx) => {
            let block = session.rxtx();
            session.screen.text(block);
        }
        Show::Config(ShowConfig::Cores) => {
            let cpus: String = session
                .settings
                .cpus
                .iter()
                .take(session.settings.nb_cores)
                .map(|c| format!(" {c:2}"))
                .collect();
            session
                .screen
                .line(format!("List of forwarding lcores:{cpus}"));
        }
    }
}

/// The block of `show port stats`.
pub fn nic_block(session: &mut Session, number: u16) -> NicBlock {
    let stats = session.nic_stats(number);
    let rates = session
        .state(number)
        .map(|s| s.meter.look(&stats, Instant::now()))
        .unwrap_or_default();
    NicBlock {
        port: number,
        stats,
        rates,
    }
}

fn summary(session: &Session, numbers: &[u16]) -> Summary {
    Summary {
        available: session.valid_ports().len(),
        ports: numbers
            .iter()
            .filter_map(|n| {
                let port = session.port(*n)?;
                let link = port.link();
                Some(SummaryLine {
                    port: *n,
                    mac: Mac(port.mac().0),
                    name: port.info().identity.name.clone(),
                    driver: DRIVER.into(),
                    link_up: link.up,
                    speed_mbps: speed(link),
                })
            })
            .collect(),
    }
}

/// A link that is down has no speed; one that is up may not tell it.
fn speed(link: pollux::Link) -> Option<u32> {
    match (link.up, link.speed_mbps) {
        (Some(false), _) => Some(0),
        (_, 0) => None,
        (_, mbps) => Some(mbps),
    }
}

fn xstats(session: &mut Session, number: u16) -> Option<XstatsBlock> {
    let stats = session.nic_stats(number);
    let queues = session.port(number)?.stats().ok()?;
    Some(XstatsBlock {
        port: number,
        stats,
        rx: queues
            .rx
            .iter()
            .map(|q| QueueStats {
                packets: q.packets,
                bytes: q.bytes,
                errors: q.errors,
            })
            .collect(),
        tx: queues
            .tx
            .iter()
            .map(|q| QueueStats {
                packets: q.packets,
                bytes: q.bytes,
                errors: q.errors,
            })
            .collect(),
    })
}

fn fw_pages(session: &Session, number: u16) -> Option<FwPages> {
    let report = session.port(number)?.driver().page_report();
    Some(FwPages::new(number, &report))
}

fn port_info(session: &mut Session, number: u16) -> Option<PortInfoBlock> {
    let state = session.state(number)?;
    let (rx_queues, tx_queues) = (state.rx.len(), state.tx.len());
    let devargs = session.device_strings().join(" ");
    let port = session.port(number)?;
    let (info, link) = (port.info(), port.link());
    let limits = |queues: usize, max_queues: usize, d: &pollux::Limits| RingLimits {
        queues: queues as u16,
        max_queues: max_queues as u32,
        max_descriptors: d.max as u32,
        min_descriptors: d.min as u32,
        // Rings are powers of two.
        alignment: d.min as u32,
    };
    Some(PortInfoBlock {
        port: number,
        mac: Mac(port.mac().0),
        name: info.identity.name.clone(),
        driver: DRIVER.into(),
        firmware: Some(info.firmware.to_string()),
        devargs,
        socket: node_number(info.node),
        memory_socket: node_number(port.pool().node()),
        link_up: link.up,
        speed_mbps: speed(link),
        // These adapters know no half duplex.
        full_duplex: true,
        autoneg: false,
        mtu: port.mtu() as u32,
        min_mtu: MIN_MTU,
        max_mtu: info.max_mtu as u32,
        promiscuous: port.promiscuous(),
        all_multicast: false,
        max_mac_addresses: 1,
        hash_key_size: HASH_KEY,
        reta_size: 0,
        rss_types: RSS_TYPES.to_vec(),
        min_rx_buffer: (MIN_MTU as usize + FRAME_OVERHEAD) as u32,
        max_rx_frame: (info.max_mtu + FRAME_OVERHEAD) as u32,
        rx: limits(rx_queues, info.max_rx_queues, &info.rx_descriptors),
        tx: limits(tx_queues, info.max_tx_queues, &info.tx_descriptors),
        max_tx_segments: 1,
        private_info: format!(
            "{}{}, board {}",
            if info.identity.emulated {
                "EMULATED "
            } else {
                ""
            },
            info.model,
            if info.board.is_empty() {
                "not told"
            } else {
                &info.board
            }
        ),
    })
}
