//! The emulator behind vfio-user sockets beside the same emulator in the driver's process: time
//! from a doorbell to the completion that follows, and `io` forwarding between two ports, both in
//! turns within one run; and what a server costs that has nothing to do.
//!
//! One CPU plays the adapter, one drives it, in both ways alike.
#![forbid(unsafe_code)]

use pollux::{BURST, Burst, Config, Lcore, Pollux};
use pollux_benches::figures::{Figures, Options, median, program};
use pollux_benches::forwarder::{Forwarder, own_testpmd};
use pollux_benches::server::Server;
use std::process::ExitCode;
use std::time::{Duration, Instant};

const WARM_UP: Duration = Duration::from_secs(1);
const WINDOW: Duration = Duration::from_secs(2);

/// Doorbells per run; their median counts.
const DOORBELLS: usize = 20_000;
/// Those before, which do not count.
const FIRST: usize = 2_000;

/// How long one packet may take before it counts as lost.
const PATIENCE: Duration = Duration::from_secs(10);

/// The two CPUs: the adapter's and the driver's.
fn cpus() -> Result<(usize, usize), String> {
    match *pollux_mempool::lcore::allowed_cpus() {
        [adapter, driver, ..] => Ok((adapter, driver)),
        _ => Err("two CPUs are needed, one to play the adapter and one to drive it".to_owned()),
    }
}

/// Nanoseconds from the doorbell of a packet to its receive completion, over a wire that ends
/// where it begins; the median of many.
fn latency(device: &str, cpu: usize) -> Result<f64, String> {
    let text = |e: pollux::Error| e.to_string();
    let config = Config {
        lcores: vec![cpu],
        ..Config::of_device(device)
    };
    let pollux = Pollux::open(&config).map_err(text)?;
    let port = pollux.port(0).map_err(text)?;
    port.start().map_err(text)?;
    let mut rx = port.take_rx(0).map_err(text)?;
    let mut tx = port.take_tx(0).map_err(text)?;
    let pool = pollux.pools().next().cloned().ok_or("no packet memory")?;
    let work = move |_: &Lcore| -> Result<Vec<f64>, String> {
        let mut times = Vec::with_capacity(DOORBELLS);
        let (mut out, mut back) = (Burst::with_capacity(BURST), Burst::with_capacity(BURST));
        for turn in 0..FIRST + DOORBELLS {
            let mut packet = pool.alloc().ok_or("no buffer left")?;
            // To everybody, of a type that nobody looks into.
            let head = [[0xff; 6], [0x02, 0, 0, 0, 0, 0x99]].concat();
            let frame = [&head[..], &[0x88, 0xb5], &[0; 46]].concat();
            if !packet.extend_from_slice(&frame) || out.push(packet).is_err() {
                return Err("a packet that does not fit".to_owned());
            }
            let start = Instant::now();
            tx.burst(&mut out);
            while rx.burst(&mut back) == 0 {
                if start.elapsed() > PATIENCE {
                    return Err("a packet was lost".to_owned());
                }
            }
            if turn >= FIRST {
                times.push(start.elapsed().as_nanos() as f64);
            }
            back.drain().for_each(drop);
        }
        Ok(times)
    };
    let lcore = pollux.spawn(cpu, work).map_err(text)?;
    let times = lcore.join().map_err(text)??;
    pollux.close().map_err(text)?;
    Ok(median(&times))
}

/// Packets per second that testpmd forwards between the ports of these devices.
fn forwarding(program: &str, devices: &[String]) -> Result<f64, String> {
    let mut args = vec!["-l", "0-1"];
    for device in devices {
        args.extend(["-a", device]);
    }
    let modes = ["--", "-i", "--forward-mode=io", "--total-num-mbufs=16384"];
    args.extend(modes);
    let mut forwarder = Forwarder::start(program, &args)?;
    forwarder.command("start tx_first 1")?;
    std::thread::sleep(WARM_UP);
    let rate = forwarder.rate(2, WINDOW)?;
    forwarder.quit()?;
    Ok(rate)
}

/// CPU time of a server without a driver, and of one whose driver is silent.
fn idle(settings: &str, cpu: usize) -> Result<(f64, f64), String> {
    let text = |e: pollux::Error| e.to_string();
    let server = Server::start(1, settings, false)?;
    let window = Duration::from_secs(1);
    std::thread::sleep(window);
    let alone = server.cpu_percent(WINDOW)?;
    let config = Config {
        lcores: vec![cpu],
        devices: server.devices(),
        ..Config::of_device("emu:")
    };
    let pollux = Pollux::open(&config).map_err(text)?;
    pollux.port(0).and_then(|port| port.start()).map_err(text)?;
    std::thread::sleep(window);
    let silent = server.cpu_percent(WINDOW)?;
    pollux.close().map_err(text)?;
    Ok((alone, silent))
}

fn run(options: &Options) -> Result<Figures, String> {
    let (adapter, driver) = cpus()?;
    let testpmd = own_testpmd()?;
    // The same in both ways; left out, the choice is each program's own.
    let settings = |wire: &str| format!("wire={wire},data_cpu={adapter},idle=adaptive");
    // Sabotage: every doorbell is a message.
    let trapped = options.sabotage;
    let [mut there, mut here] = [Vec::new(), Vec::new()];
    let [mut rates_there, mut rates_here] = [Vec::new(), Vec::new()];
    for _ in 0..options.rounds.unwrap_or(5) {
        here.push(latency(&format!("emu:{}", settings("loop")), driver)?);
        let server = Server::start(1, &settings("loop"), trapped)?;
        let devices = server.devices();
        let device = devices.first().ok_or("no device")?;
        there.push(latency(device, driver)?);
        drop(server);

        let both = format!("emu:ports=2,{}", settings("pair"));
        rates_here.push(forwarding(&testpmd, &[both])?);
        let server = Server::start(2, &settings("pair"), trapped)?;
        rates_there.push(forwarding(&testpmd, &server.devices())?);
    }
    let (alone, silent) = idle(&settings("loop"), driver)?;
    let mut figures = Figures::default();
    let (there, here) = (median(&there), median(&here));
    figures.add("doorbell_to_completion_ns", there, "ns");
    figures.add("local_doorbell_to_completion_ns", here, "ns");
    let (there, here) = (median(&rates_there), median(&rates_here));
    figures.add("forward_mpps", there / 1e6, "Mpps");
    figures.add("local_forward_mpps", here / 1e6, "Mpps");
    figures.add("vfio_user_rate_ratio", there / here, "ratio");
    figures.add("idle_server_cpu_percent", alone, "%");
    figures.add("silent_driver_server_cpu_percent", silent, "%");
    Ok(figures)
}

fn main() -> ExitCode {
    program("vfio-user", run)
}
