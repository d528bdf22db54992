//! A port whose firmware gives and takes pages by the million, over page memory that nobody
//! touches: driver, control thread and emulated firmware in this process.

use pollux_bus::local;
use pollux_emu::faults::{FaultInjector, PageDemand};
use pollux_emu::{Emulator, EmulatorConfig};
use pollux_mempool::PageChoice;
use pollux_mlx5::{OpenOptions, PageBacking, PageOptions, PageReport, Port};
use std::time::{Duration, Instant};

/// How long anything may take before a run is given up.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often the firmware's ledger is looked at.
const LOOK: Duration = Duration::from_micros(200);

/// See the module.
pub struct Rig {
    emulator: Emulator,
    faults: FaultInjector,
    /// The driver's port.
    pub port: Port,
    base: usize,
}

/// Page options for storms: untouched memory, nothing is unmapped.
pub fn untouched() -> PageOptions {
    PageOptions {
        backing: PageBacking::Untouched,
        release_interval: None,
        ..PageOptions::default()
    }
}

/// The same with steps as large as the firmware's request, up to `pages`.
pub fn uncapped(pages: u32) -> PageOptions {
    PageOptions {
        take_limit: pages,
        unbounded: true,
        ..untouched()
    }
}

fn words<T: std::fmt::Display>(error: T) -> String {
    error.to_string()
}

impl Rig {
    /// Opens the port; `settings` are the emulator's.
    ///
    /// # Errors
    /// In words.
    pub fn new(settings: &[(&str, &str)], pages: PageOptions) -> Result<Self, String> {
        let config = EmulatorConfig::from_keys(settings.iter().copied()).map_err(words)?;
        let emulator = Emulator::new(config).map_err(words)?;
        let device = emulator.function(0).map_err(words)?;
        let faults = emulator.faults(0).map_err(words)?;
        let function = local::connect(device).map_err(words)?;
        let options = OpenOptions {
            pages: PageChoice::Ordinary,
            firmware_pages: pages,
            ..OpenOptions::default()
        };
        let port = Port::open(function, options).map_err(words)?;
        let base = port.pages().held;
        Ok(Self {
            emulator,
            faults,
            port,
            base,
        })
    }

    /// Pages that firmware holds, by its own count.
    fn theirs(&self) -> usize {
        self.emulator
            .report(0)
            .map_or(0, |report| report.firmware_pages)
    }

    fn until(&self, pages: usize) -> Result<(), String> {
        let start = Instant::now();
        while self.theirs() != pages {
            if start.elapsed() > PATIENCE {
                return Err(format!(
                    "firmware holds {} pages, {pages} were to come",
                    self.theirs()
                ));
            }
            std::thread::sleep(LOOK);
        }
        // The driver's own count is right when it has booked the last answer.
        while self.port.pages().held != pages {
            if start.elapsed() > PATIENCE {
                return Err("the driver's ledger is not the firmware's".into());
            }
        }
        Ok(())
    }

    /// Firmware asks for `pages` and gets them; the time from its request on.
    ///
    /// # Errors
    /// They do not come.
    pub fn give(&self, pages: u32) -> Result<Duration, String> {
        let start = Instant::now();
        self.faults.page_request(PageDemand::Give(pages));
        self.until(self.base + pages as usize)?;
        Ok(start.elapsed())
    }

    /// Firmware offers `pages` back; the time from its request until the last one is free.
    ///
    /// # Errors
    /// They do not come.
    pub fn take(&self, pages: u32) -> Result<Duration, String> {
        let start = Instant::now();
        let target = self.theirs().saturating_sub(pages as usize);
        self.faults.page_request(PageDemand::Take(pages));
        self.until(target)?;
        Ok(start.elapsed())
    }

    /// As [`take`](Self::take), with `meanwhile` again and again until they are back.
    ///
    /// # Errors
    /// They do not come, or what `meanwhile` says.
    pub fn take_while(
        &self,
        pages: u32,
        mut meanwhile: impl FnMut(&Port) -> Result<(), String>,
    ) -> Result<(), String> {
        let start = Instant::now();
        let target = self.theirs().saturating_sub(pages as usize);
        self.faults.page_request(PageDemand::Take(pages));
        while self.theirs() != target {
            if start.elapsed() > PATIENCE {
                return Err("the pages do not come back".into());
            }
            meanwhile(&self.port)?;
        }
        self.until(target)
    }

    /// What the driver says.
    pub fn report(&self) -> PageReport {
        self.port.page_report()
    }

    /// Closes the port; everything must be back.
    ///
    /// # Errors
    /// Something is not.
    pub fn close(self) -> Result<(), String> {
        let closed = self.port.close().map_err(words)?;
        if closed.pages_kept != 0 || closed.reset {
            return Err(format!("closing left something behind: {closed:?}"));
        }
        Ok(())
    }
}
