//! Seconds from starting the forwarder to the first forwarded packet, and its resident memory.
#![forbid(unsafe_code)]

use pollux_benches::figures::{Figures, Options, median, program};
use pollux_benches::forwarder::{Forwarder, dpdk_testpmd, own_testpmd};
use std::process::ExitCode;
use std::time::Duration;

/// Resident set in bytes, hugepages not counted, as /proc says.
fn resident(pid: u32) -> Result<f64, String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).map_err(|e| e.to_string())?;
    text.lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|number| number.parse::<f64>().ok())
        .map(|kib| kib * 1024.0)
        .ok_or_else(|| "no VmRSS in /proc".to_owned())
}

fn measure(program: &str, args: &[&str]) -> Result<(f64, f64), String> {
    let mut forwarder = Forwarder::start(program, args)?;
    forwarder.command("start tx_first 1")?;
    let first = loop {
        let reading = forwarder.received(2)?;
        if reading.packets > 0 {
            break reading.at;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let seconds = (first - forwarder.started()).as_secs_f64();
    let memory = resident(forwarder.pid())?;
    forwarder.quit()?;
    Ok((seconds, memory))
}

fn run(options: &Options) -> Result<Figures, String> {
    let ours = own_testpmd()?;
    // Forty times the buffers must show in both figures.
    let mbufs = if options.sabotage {
        "--total-num-mbufs=163840"
    } else {
        "--total-num-mbufs=4096"
    };
    let own_args = [
        "-l",
        "0-1",
        "-a",
        "emu:ports=2,wire=pair",
        "--no-huge",
        "--",
        "-i",
        mbufs,
    ];
    let peer_args = [
        "-l",
        "0-1",
        "--no-pci",
        "--no-huge",
        "-m",
        "512",
        "--file-prefix=pollux-peer",
        "--vdev=net_ring0",
        "--vdev=net_ring1",
        "--",
        "-i",
        "--total-num-mbufs=4096",
    ];
    let peer = dpdk_testpmd();
    let (mut seconds, mut memory, mut peer_seconds) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..options.rounds.unwrap_or(5) {
        let (took, held) = measure(&ours, &own_args)?;
        seconds.push(took);
        memory.push(held);
        if let Some(peer) = &peer {
            peer_seconds.push(measure(peer, &peer_args)?.0);
        }
    }
    let mut figures = Figures::default();
    figures.add("startup_first_packet_ms", median(&seconds) * 1e3, "ms");
    figures.add(
        "startup_resident_mib",
        median(&memory) / f64::from(1 << 20),
        "MiB",
    );
    if peer.is_some() {
        let ratio = median(&seconds) / median(&peer_seconds);
        figures.add(
            "startup_peer_first_packet_ms",
            median(&peer_seconds) * 1e3,
            "ms",
        );
        figures.add("startup_testpmd_cost_ratio", ratio, "ratio");
    }
    Ok(figures)
}

fn main() -> ExitCode {
    program("startup", run)
}
