//! The software adapter behind `emu:` devices, as applications see it.

use crate::lcore::{EmulatorPlace, spare_cpu};
use crate::{DeviceSpec, Error, Setting};
use pollux_bus::{Function, local};
use pollux_emu::data::IdlePolicy;
use pollux_emu::wire::WireReport;
use pollux_emu::{Emulator, EmulatorConfig, FunctionReport};
use std::sync::Arc;

/// The emulator that plays this process's `emu:` device: what its wires and its firmware did.
#[derive(Debug)]
pub struct EmulatorHandle {
    emulator: Emulator,
    place: EmulatorPlace,
    first_port: usize,
}

impl EmulatorHandle {
    /// Makes the emulator of a device string. Its busy thread gets a CPU that no lcore has, if there
    /// is one, and else yields.
    pub(crate) fn new(
        settings: &[Setting],
        allowed: &[usize],
        lcores: &[usize],
        first_port: usize,
    ) -> Result<Self, Error> {
        let pairs = settings
            .iter()
            .map(|Setting { key, value }| (key.as_str(), value.as_str()));
        let given = |key: &str| settings.iter().any(|setting| setting.key == key);
        let named = |source| Error::Emulator {
            given: DeviceSpec::Emulated(settings.to_vec()).to_string(),
            source,
        };
        let mut config = EmulatorConfig::from_keys(pairs).map_err(named)?;
        if config.data_cpu.is_none() {
            config.data_cpu = spare_cpu(allowed, lcores);
        }
        let place = match config.data_cpu {
            Some(cpu) => EmulatorPlace::On(cpu),
            None => EmulatorPlace::Anywhere,
        };
        let shares = config.data_cpu.is_none_or(|cpu| lcores.contains(&cpu));
        if shares && !given("idle") {
            config.idle = IdlePolicy::Yield;
        }
        let emulator = Emulator::new(config).map_err(named)?;
        Ok(Self {
            emulator,
            place,
            first_port,
        })
    }

    pub(crate) fn place(&self) -> EmulatorPlace {
        self.place
    }

    pub(crate) fn connect(&self, function: usize) -> Result<Arc<dyn Function>, Error> {
        let device = self.emulator.function(function).map_err(unnamed)?;
        Ok(local::connect(device)?)
    }

    /// Number of its functions; one port each.
    pub fn functions(&self) -> usize {
        self.emulator.len()
    }

    /// Number of the port that its first function is.
    pub fn first_port(&self) -> usize {
        self.first_port
    }

    /// The CPU that its busy thread is pinned to.
    pub fn cpu(&self) -> Option<usize> {
        match self.place {
            EmulatorPlace::On(cpu) => Some(cpu),
            _ => None,
        }
    }

    /// What the wire of a function did.
    ///
    /// # Errors
    /// No such function, or the emulator has stopped.
    pub fn wire(&self, function: usize) -> Result<WireReport, Error> {
        self.emulator.wire(function).map_err(unnamed)
    }

    /// What the firmware of a function did and holds.
    ///
    /// # Errors
    /// No such function.
    pub fn report(&self, function: usize) -> Result<FunctionReport, Error> {
        self.emulator.report(function).map_err(unnamed)
    }

    /// Whether every frame of finite sources has been handed to a receive queue (or counted as
    /// dropped) and no send queue has work left. Frames may still wait in receive queues: poll
    /// until nothing comes, then ask again.
    ///
    /// # Errors
    /// The emulator has stopped.
    pub fn drained(&self) -> Result<bool, Error> {
        for function in 0..self.functions() {
            if !self.wire(function)?.drained {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The emulator itself, for faults on demand.
    pub fn emulator(&self) -> &Emulator {
        &self.emulator
    }
}

fn unnamed(source: pollux_emu::EmuError) -> Error {
    Error::Emulator {
        given: "emu:".to_owned(),
        source,
    }
}
