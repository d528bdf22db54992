//! Forwards packets between two ports on one lcore until their wires have run dry.
use pollux::{BURST, Burst, Config, Error, Lcore, Pollux, RxQueue, TxQueue};

/// One direction: what has been received and not yet sent waits in the burst.
struct Way(RxQueue, TxQueue, Burst);

impl Way {
    /// Moves what it can; how many packets were sent, or `None` when there was none to send.
    fn hop(&mut self) -> Option<u64> {
        self.0.burst(&mut self.2);
        (!self.2.is_empty()).then(|| self.1.burst(&mut self.2) as u64)
    }
}

/// Opens two ports, forwards, closes; returns the number of packets.
pub fn forward(device: &str) -> Result<u64, Error> {
    let pollux = Pollux::open(&Config {
        devices: vec![device.into()],
        ..Config::default()
    })?;
    pollux
        .warnings()
        .iter()
        .for_each(|warning| eprintln!("warning: {warning}"));
    let (left, right) = (pollux.port(0)?, pollux.port(1)?);
    left.start()?;
    right.start()?;
    let burst = || Burst::with_capacity(BURST);
    let mut there = Way(left.take_rx(0)?, right.take_tx(0)?, burst());
    let mut back = Way(right.take_rx(0)?, left.take_tx(0)?, burst());
    let work = move |lcore: &Lcore| {
        let mut total = 0;
        loop {
            // Asked before the look: what came before the stop is seen after it.
            let running = lcore.running();
            match (there.hop(), back.hop()) {
                (None, None) if !running => return total,
                (None, None) => lcore.idle(),
                (one, other) => total += one.unwrap_or(0) + other.unwrap_or(0),
            }
        }
    };
    let lcore = pollux.spawn(pollux.lcores()[0], work)?;
    while !pollux.drained()? {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    lcore.stop();
    let total = lcore.join()?;
    pollux.close()?;
    Ok(total)
}

fn main() -> Result<(), Error> {
    let device = std::env::args().nth(1);
    let device = device
        .as_deref()
        .unwrap_or("emu:ports=2,wire0=gen,count0=100000,wire1=null");
    println!("{device}: {} packets forwarded", forward(device)?);
    Ok(())
}
