//! `io` forwarding of 64-byte packets between two ports, one core forwarding and one playing the
//! adapter, beside DPDK's testpmd over a memif pair, alternating in one run.
#![forbid(unsafe_code)]

use pollux_benches::figures::{Figures, Options, median, program};
use pollux_benches::forwarder::{Forwarder, dpdk_testpmd, own_testpmd};
use std::process::ExitCode;
use std::time::Duration;

const WARM_UP: Duration = Duration::from_secs(1);
const WINDOW: Duration = Duration::from_secs(2);

fn measure(program: &str, args: &[&str]) -> Result<f64, String> {
    let mut forwarder = Forwarder::start(program, args)?;
    forwarder.command("start tx_first 1")?;
    std::thread::sleep(WARM_UP);
    let rate = forwarder.rate(2, WINDOW)?;
    forwarder.quit()?;
    Ok(rate)
}

fn run(options: &Options) -> Result<Figures, String> {
    let ours = own_testpmd()?;
    let peer = dpdk_testpmd();
    // A burst of one rings a doorbell and writes a record for every packet.
    let burst = if options.sabotage {
        "--burst=1"
    } else {
        "--burst=32"
    };
    let own_args = [
        "-l",
        "0-1",
        "-a",
        "emu:ports=2,wire=pair",
        "--",
        "-i",
        "--forward-mode=io",
        "--total-num-mbufs=16384",
        burst,
    ];
    let socket = std::env::temp_dir().join(format!("pollux-bench-{}.sock", std::process::id()));
    let server = format!(
        "--vdev=net_memif0,role=server,id=0,socket={},socket-abstract=no",
        socket.display()
    );
    let client = format!(
        "--vdev=net_memif1,role=client,id=0,socket={},socket-abstract=no",
        socket.display()
    );
    let peer_args = [
        "-l",
        "0-1",
        "--no-pci",
        "--in-memory",
        "--file-prefix=pollux-peer",
        "-m",
        "128",
        &server,
        &client,
        "--",
        "-i",
        "--forward-mode=io",
        "--total-num-mbufs=16384",
        "--burst=32",
    ];
    let (mut own_rates, mut peer_rates) = (Vec::new(), Vec::new());
    for _ in 0..options.rounds.unwrap_or(5) {
        own_rates.push(measure(&ours, &own_args)?);
        if let Some(peer) = &peer {
            peer_rates.push(measure(peer, &peer_args)?);
        }
    }
    let mut figures = Figures::default();
    let own = median(&own_rates);
    figures.add("forward_mpps", own / 1e6, "Mpps");
    if peer.is_some() {
        let peer = median(&peer_rates);
        figures.add("memif_mpps", peer / 1e6, "Mpps");
        figures.add("forward_memif_rate_ratio", own / peer, "ratio");
    } else {
        eprintln!("no peer: dpdk-testpmd is not installed (Debian: apt-get install dpdk-dev)");
    }
    drop(std::fs::remove_file(socket));
    Ok(figures)
}

fn main() -> ExitCode {
    program("forward", run)
}
