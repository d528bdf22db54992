//! Forwards packets between two ports on one lcore until their wires have run dry.
use pollux::{BURST, Burst, Config, Error, Lcore, Pollux};

/// Opens two ports, forwards, closes; returns the number of packets.
pub fn forward(device: &str) -> Result<u64, Error> {
    let pollux = Pollux::open(&Config::of_device(device))?;
    let (left, right) = (pollux.port(0)?, pollux.port(1)?);
    left.start()?;
    right.start()?;
    let burst = || Burst::with_capacity(BURST);
    let there = (left.take_rx(0)?, right.take_tx(0)?, burst());
    let back = (right.take_rx(0)?, left.take_tx(0)?, burst());
    let mut ways = [there, back];
    let work = move |lcore: &Lcore| {
        let mut total = 0;
        loop {
            // Asked before the look: what came before the stop is seen after it.
            let (running, mut seen) = (lcore.running(), 0);
            for (rx, tx, burst) in &mut ways {
                rx.burst(burst); // behind what could not be sent yet
                seen += burst.len();
                total += tx.burst(burst) as u64;
            }
            match seen {
                0 if running => lcore.idle(),
                0 => return total,
                _ => (),
            }
        }
    };
    let lcore = pollux.spawn(pollux.lcores()[0], work)?;
    pollux.wait_drained()?;
    lcore.stop();
    let total = lcore.join()?;
    pollux.close().map(|_| total)
}

fn main() -> Result<(), Error> {
    let generated = "emu:ports=2,wire0=gen,count0=99999,wire1=null";
    let device = std::env::args().nth(1).unwrap_or(generated.into());
    forward(&device).map(|total| println!("{device}: {total} packets forwarded"))
}
