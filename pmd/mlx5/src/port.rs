//! A port: one adapter function, opened; its settings, queues, link and statistics.
//!
//! # Lifecycle
//!
//! [`Port::open`] brings the function up. [`Port::start`] makes queues, which
//! [`take_rx`](Port::take_rx) and [`take_tx`](Port::take_tx) hand out, each once for one start.
//! [`Port::stop`] takes them down: a queue that is still out becomes inert and may be dropped at
//! any time. [`Port::close`] (or dropping the port) returns everything to firmware and host. Stop
//! and close may be called again; a call that fails leaves nothing behind, and a second try may
//! succeed.
//!
//! Any thread may call; calls wait for each other and for the control thread. None is for a core
//! that polls queues.

use crate::bringup::Device;
use crate::config::{Limits, MacAddress, OpenOptions, PortConfig, PortInfo, model};
use crate::control::EventCounts;
use crate::counters::{RxCounters, TxCounters};
use crate::error::Error;
use crate::health::Fault;
use crate::link::Link;
use crate::pages::PageCounts;
use crate::queues::{self, Seat, Start, Started};
use crate::rx::RxQueue;
use crate::stats::{Ledger, PortStats};
use crate::tx::TxQueue;
use crate::uars::UarPages;
use crate::vport;
use pollux_bus::Function;
use pollux_prm::command::Command;
use pollux_prm::commands::counters::{AllocQCounter, DeallocQCounter};
use pollux_prm::commands::eq::DeallocUar;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Fewest descriptors of a queue.
const MIN_DESCRIPTORS: usize = 32;
/// Most: queues count modulo 2^16.
const MAX_DESCRIPTORS: usize = 1 << 15;
/// Most queues of a kind that a port offers, whatever the adapter has.
const MAX_QUEUES: usize = 1024;

/// What closing a port has met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CloseReport {
    /// Pages that firmware was given in all.
    pub pages_given: u64,
    /// Pages that firmware did not return (0 unless the device failed).
    pub pages_kept: usize,
    /// Whether the function had to be reset because it did not obey.
    pub reset: bool,
}

struct Inner {
    /// Nothing once the port is closed.
    device: Option<Device>,
    started: Option<Started>,
    uars: UarPages,
    ledger: Ledger,
    counter_set: u8,
    mac: MacAddress,
    mtu: usize,
    promiscuous: bool,
}

/// One port. See the module's text.
pub struct Port {
    info: PortInfo,
    max_indirections: usize,
    inner: Mutex<Inner>,
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Port")
            .field("info", &self.info)
            .finish_non_exhaustive()
    }
}

impl Port {
    /// Brings a function up: commands, firmware pages, event queues, protection and transport
    /// domain. The link is asked for; [`Port::link`] knows it soon after.
    ///
    /// # Errors
    /// What the bus, the memory or firmware refuse; everything is undone then.
    pub fn open(function: Arc<dyn Function>, options: OpenOptions) -> Result<Self, Error> {
        let mut device = Device::open(function, &options)?;
        let opened = Self::read(&mut device, &options);
        let (info, max_indirections, inner) = match opened {
            Ok(parts) => parts,
            Err(error) => {
                let closed = device.close();
                tracing::debug!(?closed, "port not opened");
                return Err(error);
            }
        };
        device.control.ask_link();
        let inner = Mutex::new(Inner {
            device: Some(device),
            ..inner
        });
        Ok(Self {
            info,
            max_indirections,
            inner,
        })
    }

    fn read(device: &mut Device, options: &OpenOptions) -> Result<(PortInfo, usize, Inner), Error> {
        let control = device.control.clone();
        let counter_set = control
            .execute::<AllocQCounter>(&AllocQCounter::request())?
            .counter_set_id();
        let mut dealloc = DeallocQCounter::request();
        dealloc.set_counter_set_id(counter_set);
        device.keep::<DeallocQCounter>("queue counter", dealloc);
        let mac = MacAddress(vport::context(&control)?.permanent_address().mac());
        let (max_mtu, mtu) = vport::mtu(&control)?;
        let general = &device.capabilities.general;
        let power = |log: u8| 1usize << log.min(24);
        // Each queue needs a completion queue of its own.
        let cqs = power(general.log_max_cq()) / 2;
        let most = |queues: usize| queues.min(cqs).min(MAX_QUEUES);
        let ring = |log: u8| Limits {
            min: MIN_DESCRIPTORS,
            max: power(log)
                .min(power(general.log_max_cq_sz()))
                .min(MAX_DESCRIPTORS),
        };
        let max_indirections = power(general.log_max_rqt_size());
        let info = PortInfo {
            identity: device.function.identity().clone(),
            number: options.number,
            model: model(device.function.identity().device),
            firmware: device.firmware,
            board: device.psid.clone(),
            mac,
            max_mtu,
            max_rx_queues: most(power(general.log_max_rq()).min(max_indirections)),
            max_tx_queues: most(power(general.log_max_sq())),
            rx_descriptors: ring(general.log_max_wq_sz()),
            tx_descriptors: ring(general.log_max_wq_sz()),
            node: device.node,
        };
        let inner = Inner {
            device: None,
            started: None,
            uars: UarPages::default(),
            ledger: Ledger::default(),
            counter_set,
            mac,
            mtu,
            promiscuous: false,
        };
        Ok((info, max_indirections, inner))
    }

    /// What the port is.
    pub fn info(&self) -> &PortInfo {
        &self.info
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn name(&self) -> String {
        self.info.identity.name.clone()
    }

    fn state(&self, asked: &'static str, state: &'static str, remedy: &'static str) -> Error {
        Error::State {
            function: self.name(),
            asked,
            state,
            remedy,
        }
    }

    fn device<'a>(&self, inner: &'a Inner, asked: &'static str) -> Result<&'a Device, Error> {
        inner
            .device
            .as_ref()
            .ok_or_else(|| self.state(asked, "closed", "open it again"))
    }

    /// Makes the queues and lets packets in.
    ///
    /// # Errors
    /// A setting outside what the adapter takes, memory, firmware's refusal; everything is undone
    /// then. [`Error::State`] when the port is started already, or closed.
    pub fn start(&self, config: &PortConfig) -> Result<(), Error> {
        let mut guard = self.lock();
        let inner = &mut *guard;
        if inner.started.is_some() {
            return Err(self.state("start", "started", "stop it first"));
        }
        let Some(device) = &mut inner.device else {
            return Err(self.state("start", "closed", "open it again"));
        };
        let wanted = config.mtu.unwrap_or(inner.mtu);
        queues::check(
            config,
            wanted,
            self.info.max_rx_queues,
            self.info.max_tx_queues,
            self.info.rx_descriptors,
            self.info.tx_descriptors,
        )?;
        if wanted != inner.mtu {
            inner.mtu = vport::set_mtu(&device.control, wanted, self.info.max_mtu)?;
        }
        let mut graveyard = std::mem::take(&mut device.graveyard);
        let start = Start {
            device,
            uars: &mut inner.uars,
            config,
            number: self.info.number,
            mtu: inner.mtu,
            counter_set: inner.counter_set,
            max_indirections: self.max_indirections,
        };
        let made = Started::new(start, &mut graveyard);
        device.graveyard = graveyard;
        let mut started = made?;
        let promiscuous = config.promiscuous;
        if let Err(error) = admit(device, &mut started, inner.mac, promiscuous) {
            let errors = started.stop(&device.control, &mut device.graveyard);
            tracing::debug!(?errors, "start undone");
            return Err(error);
        }
        inner.promiscuous = promiscuous;
        inner.started = Some(started);
        Ok(())
    }

    fn queue<Q, C>(
        &self,
        kind: &'static str,
        index: usize,
        seat: Option<Option<&mut Seat<Q, C>>>,
    ) -> Result<Q, Error> {
        let why = match seat {
            None => "the port is not started; start it first".to_owned(),
            Some(None) => "there is no such queue; configure more".to_owned(),
            Some(Some(seat)) => match seat.queue.take() {
                Some(queue) => return Ok(queue),
                None => "it was taken already; stop and start the port to get it anew".to_owned(),
            },
        };
        Err(Error::Queue {
            function: self.name(),
            kind,
            index,
            why,
        })
    }

    /// Takes receive queue `index`.
    ///
    /// # Errors
    /// [`Error::Queue`] when there is none, or it was taken.
    pub fn take_rx(&self, index: usize) -> Result<RxQueue, Error> {
        let mut inner = self.lock();
        let seat = inner
            .started
            .as_mut()
            .map(|started| started.rx.get_mut(index));
        self.queue("RX", index, seat)
    }

    /// Takes transmit queue `index`.
    ///
    /// # Errors
    /// [`Error::Queue`] when there is none, or it was taken.
    pub fn take_tx(&self, index: usize) -> Result<TxQueue, Error> {
        let mut inner = self.lock();
        let seat = inner
            .started
            .as_mut()
            .map(|started| started.tx.get_mut(index));
        self.queue("TX", index, seat)
    }

    /// Whether the port is started.
    pub fn is_started(&self) -> bool {
        self.lock().started.is_some()
    }

    /// Takes the queues down; those that are out are inert from then on. Does nothing when the
    /// port is not started.
    ///
    /// # Errors
    /// The first of what firmware refused; the port is stopped all the same.
    pub fn stop(&self) -> Result<(), Error> {
        stop(&mut self.lock()).map_or(Ok(()), Err)
    }

    /// State of the link, as far as the device tells it.
    pub fn link(&self) -> Link {
        let inner = self.lock();
        inner
            .device
            .as_ref()
            .map_or_else(Link::default, |device| device.control.shared().link())
    }

    /// Has `callback` called with each new state of the link, and at once with the present one if
    /// it is known; it replaces the one before. It runs on the control thread: it must return
    /// soon, and every call of this port from it is refused or would wait for itself.
    ///
    /// # Errors
    /// [`Error::State`] when the port is closed.
    pub fn on_link_change(&self, callback: impl FnMut(Link) + Send + 'static) -> Result<(), Error> {
        let control = self.device(&self.lock(), "link callback")?.control.clone();
        control.shared().on_link_change(Box::new(callback));
        Ok(())
    }

    /// Why the device was given up, if it was. The port can only be closed then.
    pub fn fault(&self) -> Option<Fault> {
        self.lock()
            .device
            .as_ref()
            .and_then(|device| device.control.shared().fault())
    }

    /// Statistics since the last reset.
    ///
    /// # Errors
    /// The device does not answer, or the port is closed.
    pub fn stats(&self) -> Result<PortStats, Error> {
        let mut guard = self.lock();
        let control = self.device(&guard, "statistics")?.control.clone();
        let inner = &mut *guard;
        let (rx, tx) = counters(inner.started.as_ref());
        inner.ledger.read(&control, inner.counter_set, &rx, &tx)
    }

    /// Counts from now on.
    ///
    /// # Errors
    /// The device does not answer, or the port is closed.
    pub fn reset_stats(&self) -> Result<(), Error> {
        let mut guard = self.lock();
        let control = self.device(&guard, "reset of statistics")?.control.clone();
        let inner = &mut *guard;
        let (rx, tx) = counters(inner.started.as_ref());
        inner.ledger.reset(&control, inner.counter_set, &rx, &tx)
    }

    /// What the control thread has met.
    pub fn events(&self) -> EventCounts {
        let inner = self.lock();
        inner
            .device
            .as_ref()
            .map_or_else(EventCounts::default, |d| d.control.shared().counts())
    }

    /// What firmware holds and held of the host's pages.
    pub fn pages(&self) -> PageCounts {
        let control = self
            .lock()
            .device
            .as_ref()
            .map(|device| device.control.clone());
        control.map_or_else(PageCounts::default, |control| control.page_counts())
    }

    /// Whether every packet is taken.
    pub fn promiscuous(&self) -> bool {
        self.lock().promiscuous
    }

    /// Takes every packet, or only those for the port's address and for all. While the port is
    /// stopped, the setting of the next start decides.
    ///
    /// # Errors
    /// Firmware's refusal, or the port is not started.
    pub fn set_promiscuous(&self, on: bool) -> Result<(), Error> {
        let mut guard = self.lock();
        let inner = &mut *guard;
        let Some((device, started)) = inner.device.as_ref().zip(inner.started.as_mut()) else {
            return Err(self.state("promiscuous mode", "stopped", "start it first"));
        };
        vport::set_promiscuous(&device.control, on)?;
        if let Some(steering) = &mut started.steering {
            steering.set_promiscuous(&device.control, on)?;
        }
        inner.promiscuous = on;
        Ok(())
    }

    /// Largest IP packet in bytes.
    pub fn mtu(&self) -> usize {
        self.lock().mtu
    }

    /// Sets the largest IP packet.
    ///
    /// # Errors
    /// A size that the device does not take; [`Error::State`] while the port is started, because
    /// its queues were made for the size before.
    pub fn set_mtu(&self, mtu: usize) -> Result<(), Error> {
        let mut guard = self.lock();
        let control = self.device(&guard, "MTU")?.control.clone();
        if guard.started.is_some() {
            return Err(self.state("MTU", "started", "stop it first"));
        }
        guard.mtu = vport::set_mtu(&control, mtu, self.info.max_mtu)?;
        Ok(())
    }

    /// The address that the port takes packets for.
    pub fn mac(&self) -> MacAddress {
        self.lock().mac
    }

    /// Takes packets for another address instead.
    ///
    /// # Errors
    /// A multicast address, or firmware's refusal.
    pub fn set_mac(&self, mac: MacAddress) -> Result<(), Error> {
        if mac.is_multicast() || mac == MacAddress::default() {
            return Err(Error::Setting {
                what: "station address",
                given: mac
                    .0
                    .iter()
                    .fold(0, |all, byte| all << 8 | u64::from(*byte)),
                allowed: "addresses of one station, not zero".into(),
                remedy: "clear the lowest bit of the first byte".into(),
            });
        }
        let mut guard = self.lock();
        let inner = &mut *guard;
        let Some(device) = &inner.device else {
            return Err(self.state("station address", "closed", "open it again"));
        };
        if let Some(started) = &mut inner.started {
            vport::set_addresses(&device.control, &[mac])?;
            if let Some(steering) = &mut started.steering {
                steering.admit(&device.control, mac)?;
                if mac != inner.mac {
                    steering.expel(&device.control, inner.mac)?;
                }
            }
        }
        inner.mac = mac;
        Ok(())
    }

    /// Returns everything to firmware and host. Does nothing on a closed port.
    ///
    /// # Errors
    /// [`Error::Close`] with the first of what failed; the port is closed all the same, and if
    /// the device did not obey, it was reset.
    pub fn close(&self) -> Result<CloseReport, Error> {
        close(&mut self.lock(), &self.info.identity.name)
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::warn!(%error, "port dropped");
        }
    }
}

type Counters<'a> = (Vec<&'a RxCounters>, Vec<&'a TxCounters>);

fn counters(started: Option<&Started>) -> Counters<'_> {
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
    }
    vport::set_port_up(control)?;
    control.ask_link();
    Ok(())
}

fn stop(inner: &mut Inner) -> Option<Error> {
    let started = inner.started.take()?;
    let device = inner.device.as_mut()?;
    let (rx, tx) = (
        started
            .rx
            .iter()
            .map(|seat| Arc::clone(&seat.counters))
            .collect::<Vec<_>>(),
        started
            .tx
            .iter()
            .map(|seat| Arc::clone(&seat.counters))
            .collect::<Vec<_>>(),
    );
    let mut graveyard = std::mem::take(&mut device.graveyard);
    let errors = started.stop(&device.control, &mut graveyard);
    device.graveyard = graveyard;
    let rx: Vec<&RxCounters> = rx.iter().map(AsRef::as_ref).collect();
    let tx: Vec<&TxCounters> = tx.iter().map(AsRef::as_ref).collect();
    inner.ledger.retire(&rx, &tx);
    errors.into_iter().next()
}

fn close(inner: &mut Inner, name: &str) -> Result<CloseReport, Error> {
    let mut errors: Vec<Error> = stop(inner).into_iter().collect();
    let Some(mut device) = inner.device.take() else {
        return Ok(CloseReport::default());
    };
    for number in inner.uars.drain() {
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
