//! A port's state: what its calls change, under one lock.

use crate::bringup::Device;
use crate::config::{Limits, MacAddress, OpenOptions, PortConfig, PortInfo};
use crate::control::Control;
use crate::counters::{RxCounters, TxCounters};
use crate::error::{CommandFailure, Error};
use crate::family::model;
use crate::needs::NO_COUNTER_SET;
use crate::queues::{self, Start, Started};
use crate::stats::{Counts, Ledger};
use crate::uars::UarPages;
use crate::vport;
use pollux_prm::command::Command;
use pollux_prm::commands::counters::{AllocQCounter, DeallocQCounter};
use pollux_prm::commands::eq::DeallocUar;
use std::sync::Arc;

use super::CloseReport;

/// Fewest descriptors of a queue.
const MIN_DESCRIPTORS: usize = 32;
/// Most: queues count modulo 2^16.
const MAX_DESCRIPTORS: usize = 1 << 15;
/// How the board of every emulated model is named (PSID).
const EMULATED_BOARD: &str = "PLX_";

/// Most queues of a kind that a port offers, whatever the adapter has.
const MAX_QUEUES: usize = 1024;

/// What can be asked at any time, also by a link callback.
#[derive(Clone, Copy, Default)]
pub(super) struct View {
    pub(super) started: bool,
    pub(super) mac: MacAddress,
    pub(super) mtu: usize,
    pub(super) promiscuous: bool,
}

/// Everything else.
pub(super) struct State {
    /// Nothing once the port is closed.
    pub(super) device: Option<Device>,
    pub(super) started: Option<Started>,
    uars: UarPages,
    pub(super) ledger: Ledger,
    /// Where the adapter has one.
    pub(super) counter_set: Option<u8>,
    /// Whether the adapter counts what passes its port.
    pub(super) port_counters: bool,
    max_indirections: usize,
    pub(super) mac: MacAddress,
    pub(super) mtu: usize,
    pub(super) promiscuous: bool,
}

pub(super) type Counters<'a> = (Vec<&'a RxCounters>, Vec<&'a TxCounters>);

/// The function's address. A virtual function may have none until its owner gives it one; it gets
/// one that is made up then.
fn address(control: &Control, name: &str) -> Result<(MacAddress, bool), Error> {
    let found = MacAddress(vport::context(control)?.permanent_address().mac());
    if found.0 != [0; 6] {
        return Ok((found, false));
    }
    let mac = vport::made_up();
    let refused = |error| {
        tracing::debug!(%error, "an address of its own");
        Error::Unsupported {
            function: name.to_owned(),
            lacks: "has no MAC address and may not choose one".into(),
            remedy: "have the physical function's owner give it one (ip link set NAME vf N mac ADDRESS) or trust it (... trust on)",
        }
    };
    vport::set_permanent_address(control, mac).map_err(refused)?;
    Ok((mac, true))
}

impl State {
    /// Opens the function and reads what the port is.
    pub(super) fn open(
        function: Arc<dyn pollux_bus::Function>,
        options: &OpenOptions,
    ) -> Result<(PortInfo, Self), Error> {
        let mut device = Device::open(function, options)?;
        match Self::read(&mut device, options) {
            Ok((info, state)) => {
                let device = Some(device);
                Ok((info, Self { device, ..state }))
            }
            Err(error) => {
                let closed = device.close();
                tracing::debug!(?closed, "port not opened");
                Err(error)
            }
        }
    }

    fn read(device: &mut Device, options: &OpenOptions) -> Result<(PortInfo, Self), Error> {
        let control = device.control.clone();
        let counter_set = match control.execute::<AllocQCounter>(&AllocQCounter::request()) {
            Ok(made) => {
                let mut dealloc = DeallocQCounter::request();
                dealloc.set_counter_set_id(made.counter_set_id());
                device.keep::<DeallocQCounter>("queue counter", dealloc);
                Some(made.counter_set_id())
            }
            Err(CommandFailure::Refused(refusal)) => {
                tracing::debug!(%refusal, "no counter set");
                device.shortcomings.push(NO_COUNTER_SET.to_owned());
                None
            }
            Err(failure) => return Err(failure.into()),
        };
        let (mac, mac_made_up) = address(&control, &device.name)?;
        let (max_mtu, mtu) = vport::mtu(&control)?;
        let general = &device.capabilities.general;
        let power = |log: u8| 1usize << log.min(24);
        // Each queue needs a completion queue of its own.
        let cqs = power(general.log_max_cq()) / 2;
        let most = |queues: usize| queues.min(cqs).min(MAX_QUEUES);
        let largest = power(general.log_max_wq_sz()).min(power(general.log_max_cq_sz()));
        let ring = Limits {
            min: MIN_DESCRIPTORS,
            max: largest.min(MAX_DESCRIPTORS),
        };
        let max_indirections = power(general.log_max_rqt_size());
        let mut identity = device.function.identity().clone();
        // Behind a bus that is real (a guest's) an emulator shows by its board's name only.
        identity.emulated |= device.psid.starts_with(EMULATED_BOARD);
        let info = PortInfo {
            identity,
            number: options.number,
            model: model(device.function.identity()),
            firmware: device.firmware,
            board: device.psid.clone(),
            mac,
            mac_made_up,
            shortcomings: device.shortcomings.clone(),
            max_mtu,
            max_rx_queues: if device.without.spreading {
                1
            } else {
                most(power(general.log_max_rq()).min(max_indirections))
            },
            max_tx_queues: most(power(general.log_max_sq())),
            rx_descriptors: ring,
            tx_descriptors: ring,
            node: device.node,
        };
        let state = Self {
            device: None,
            started: None,
            uars: UarPages::default(),
            ledger: Ledger::default(),
            counter_set,
            port_counters: !device.without.vport_counters,
            max_indirections,
            mac,
            mtu,
            promiscuous: false,
        };
        Ok((info, state))
    }

    /// What the device counts for this port.
    pub(super) fn counts(&self) -> Counts {
        Counts {
            counter_set: self.counter_set,
            port: self.port_counters,
        }
    }

    pub(super) fn view(&self) -> View {
        View {
            started: self.started.is_some(),
            mac: self.mac,
            mtu: self.mtu,
            promiscuous: self.promiscuous,
        }
    }

    /// What the queues count.
    pub(super) fn counters(started: Option<&Started>) -> Counters<'_> {
        started.map_or_else(Default::default, |started| {
            let rx = started
                .rx
                .iter()
                .map(|seat| seat.counters.as_ref())
                .collect();
            (
                rx,
                started
                    .tx
                    .iter()
                    .map(|seat| seat.counters.as_ref())
                    .collect(),
            )
        })
    }

    /// Makes the queues and lets packets in. The port is neither closed nor started.
    pub(super) fn start(&mut self, info: &PortInfo, config: &PortConfig) -> Result<(), Error> {
        let Some(device) = &mut self.device else {
            return Ok(());
        };
        let wanted = config.mtu.unwrap_or(self.mtu);
        queues::check(config, wanted, info)?;
        if wanted != self.mtu {
            self.mtu = vport::set_mtu(&device.control, wanted, info.max_mtu)?;
        }
        let mut graveyard = std::mem::take(&mut device.graveyard);
        let start = Start {
            device,
            uars: &mut self.uars,
            config,
            number: info.number,
            mtu: self.mtu,
            counter_set: self.counter_set,
            max_indirections: self.max_indirections,
        };
        let made = Started::new(start, &mut graveyard);
        device.graveyard = graveyard;
        let mut started = made?;
        if let Err(error) = admit(device, &mut started, self.mac, config.promiscuous) {
            let errors = started.stop(&device.control, &mut device.graveyard);
            tracing::debug!(?errors, "start undone");
            return Err(error);
        }
        self.promiscuous = config.promiscuous;
        self.started = Some(started);
        Ok(())
    }

    /// Takes the queues down, if there are any; the first error.
    pub(super) fn stop(&mut self) -> Result<(), Error> {
        let Some((started, device)) = self.started.take().zip(self.device.as_mut()) else {
            return Ok(());
        };
        let rx: Vec<_> = started
            .rx
            .iter()
            .map(|seat| Arc::clone(&seat.counters))
            .collect();
        let tx: Vec<_> = started
            .tx
            .iter()
            .map(|seat| Arc::clone(&seat.counters))
            .collect();
        let mut graveyard = std::mem::take(&mut device.graveyard);
        let errors = started.stop(&device.control, &mut graveyard);
        device.graveyard = graveyard;
        let rx: Vec<&RxCounters> = rx.iter().map(AsRef::as_ref).collect();
        let tx: Vec<&TxCounters> = tx.iter().map(AsRef::as_ref).collect();
        self.ledger.retire(&rx, &tx);
        errors.into_iter().next().map_or(Ok(()), Err)
    }

    /// Returns everything.
    pub(super) fn close(&mut self, name: &str) -> Result<CloseReport, Error> {
        if let Some(device) = &self.device {
            device.control.closing();
        }
        let mut errors: Vec<Error> = self.stop().err().into_iter().collect();
        let Some(mut device) = self.device.take() else {
            return Ok(CloseReport::default());
        };
        for number in self.uars.drain() {
            let mut dealloc = DeallocUar::request();
            let done = match dealloc.set_uar(number) {
                Ok(_) => device
                    .control
                    .execute::<DeallocUar>(&dealloc)
                    .map(drop)
                    .map_err(Error::from),
                Err(error) => Err(error.into()),
            };
            errors.extend(done.err());
        }
        let pages_given = device.control.page_counts().given;
        let dirty = !errors.is_empty();
        let closed = device.close_after(dirty);
        device.control.shared().close();
        errors.extend(closed.errors);
        let count = errors.len();
        match errors.into_iter().next() {
            None => Ok(CloseReport {
                pages_given,
                pages_kept: closed.pages_kept,
                reset: closed.reset,
            }),
            Some(first) => Err(Error::Close {
                function: name.to_owned(),
                count,
                first: Box::new(first),
            }),
        }
    }
}

/// Lets packets in and switches the port on.
fn admit(
    device: &Device,
    started: &mut Started,
    mac: MacAddress,
    promiscuous: bool,
) -> Result<(), Error> {
    let control = &device.control;
    vport::set_addresses(control, &[mac])?;
    vport::set_promiscuous(control, promiscuous)?;
    if let Some(steering) = &mut started.steering {
        steering.admit(control, mac)?;
        steering.admit(control, MacAddress::BROADCAST)?;
        steering.set_promiscuous(control, promiscuous)?;
        steering.open(control)?;
    }
    vport::set_port_up(control)?;
    control.ask_link();
    Ok(())
}
