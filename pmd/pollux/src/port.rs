//! A port as applications see it: one adapter function, with the pools and settings that
//! [`Pollux`](crate::Pollux) made for it.
//!
//! # Lifecycle
//!
//! Opened by [`Pollux::open`](crate::Pollux::open). [`start`](Port::start) makes queues,
//! [`take_rx`](Port::take_rx) and [`take_tx`](Port::take_tx) hand each out once per start; they go
//! to an lcore or to any other thread, and their drop is the way back. [`stop`](Port::stop) makes
//! queues that are still out inert: their bursts return 0, their memory stays mapped until they are
//! dropped. [`close`](Port::close) gives everything back to firmware and host. Queues hold on to
//! their pool, and so does every packet: no order of dropping pools, queues, packets and ports
//! can free memory that the device or the application still uses.
//!
//! Any thread may call; none of the calls is for a loop that polls.

use crate::{Error, PortSettings};
use pollux_mempool::Pool;
use pollux_mlx5::{
    CloseReport, Link, LinkTrouble, MacAddress, PortConfig, PortInfo, PortStats, PortWatch,
    RxQueue, RxQueueConfig, TxQueue, TxQueueConfig,
};
use std::sync::{Mutex, PoisonError};

/// Bytes of a frame that are not MTU: the Ethernet header and one VLAN tag.
const OVERHEAD: usize = 14 + 4;

/// See the module.
#[derive(Debug)]
pub struct Port {
    device: pollux_mlx5::Port,
    settings: PortSettings,
    pool: Pool,
    /// Pools of other nodes, whose packets may be sent here.
    others: Vec<Pool>,
    lcores: usize,
    warnings: Mutex<Vec<String>>,
}

impl Port {
    pub(crate) fn new(
        device: pollux_mlx5::Port,
        settings: PortSettings,
        pool: Pool,
        others: Vec<Pool>,
        lcores: usize,
    ) -> Self {
        Self {
            device,
            settings,
            pool,
            others,
            lcores,
            warnings: Mutex::default(),
        }
    }

    /// Number of the port; its packets carry it.
    pub fn index(&self) -> usize {
        usize::from(self.info().number)
    }

    /// What the port is.
    pub fn info(&self) -> &PortInfo {
        self.device.info()
    }

    /// The pool that its receive queues take buffers from.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The settings that [`start`](Self::start) uses.
    pub fn settings(&self) -> &PortSettings {
        &self.settings
    }

    /// Largest MTU that [`start`](Self::start) accepts: what the device takes and a buffer holds.
    pub fn max_mtu(&self) -> usize {
        self.info()
            .max_mtu
            .min(self.pool.data_room().saturating_sub(OVERHEAD))
    }

    /// Starts with the settings of the configuration.
    ///
    /// # Errors
    /// As [`start_with`](Self::start_with).
    pub fn start(&self) -> Result<(), Error> {
        self.start_with(&self.settings)
    }

    /// Starts with other settings.
    ///
    /// # Errors
    /// [`Error::Setting`] for a setting that the device or the pool cannot meet, or what the
    /// driver meets; nothing is left behind then and another try may succeed.
    pub fn start_with(&self, settings: &PortSettings) -> Result<(), Error> {
        settings.check()?;
        let mtu = settings.mtu.unwrap_or_else(|| self.device.mtu());
        if mtu > self.max_mtu() {
            return Err(Error::Setting {
                what: "port.mtu",
                given: mtu.to_string(),
                allowed: format!(
                    "up to {} with {} bytes of data room (the device: {})",
                    self.max_mtu(),
                    self.pool.data_room(),
                    self.info().max_mtu
                ),
                remedy: "lower the MTU or raise memory.data_room".to_owned(),
            });
        }
        let rx = RxQueueConfig {
            descriptors: settings.rx_descriptors,
            pool: self.pool.clone(),
        };
        let tx = TxQueueConfig {
            descriptors: settings.tx_descriptors,
            chains: false,
        };
        let mut pools = self.others.clone();
        pools.push(self.pool.clone());
        self.device.start(&PortConfig {
            rx: vec![rx; settings.rx_queues],
            tx: vec![tx; settings.tx_queues],
            mtu: settings.mtu,
            promiscuous: settings.promiscuous,
            pools,
        })?;
        let descriptors = settings.rx_queues * settings.rx_descriptors
            + settings.tx_queues * settings.tx_descriptors;
        let warning = self
            .pool
            .too_small_for(descriptors, self.lcores, crate::BURST);
        *self.warnings.lock().unwrap_or_else(PoisonError::into_inner) =
            warning.into_iter().collect();
        Ok(())
    }

    /// What the adapter lacks and what the last start met that costs packets or speed, without being
    /// an error.
    pub fn warnings(&self) -> Vec<String> {
        let last = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        let info = self.info();
        let own = info.mac_made_up.then(|| {
            format!(
                "port {} had no MAC address, so {} was made up; have the physical function's owner give it one (ip link set NAME vf N mac ADDRESS)",
                info.number, info.mac
            )
        });
        let less = info
            .shortcomings
            .iter()
            .map(|text| format!("port {}: {text}", info.number));
        own.into_iter()
            .chain(less)
            .chain(last.iter().cloned())
            .collect()
    }

    /// Whether it is started.
    pub fn is_started(&self) -> bool {
        self.device.is_started()
    }

    /// Takes receive queue `index` of this start.
    ///
    /// # Errors
    /// There is none, it was taken, or the port is not started.
    pub fn take_rx(&self, index: usize) -> Result<RxQueue, Error> {
        Ok(self.device.take_rx(index)?)
    }

    /// Takes transmit queue `index` of this start.
    ///
    /// # Errors
    /// There is none, it was taken, or the port is not started.
    pub fn take_tx(&self, index: usize) -> Result<TxQueue, Error> {
        Ok(self.device.take_tx(index)?)
    }

    /// Stops; queues that are out become inert. Does nothing on a stopped port.
    ///
    /// # Errors
    /// The first thing that firmware refused; the port is stopped all the same.
    pub fn stop(&self) -> Result<(), Error> {
        Ok(self.device.stop()?)
    }

    /// State of the link, as far as the device tells it.
    pub fn link(&self) -> Link {
        self.device.link()
    }

    /// Why the link is down, as far as the port says it.
    ///
    /// # Errors
    /// The device does not answer, or the port is closed.
    pub fn link_trouble(&self) -> Result<Option<LinkTrouble>, Error> {
        Ok(self.device.link_trouble()?)
    }

    /// For looking whether the port should be closed (its device failed, or is being taken away),
    /// from a thread that does not hold it.
    pub fn watch(&self) -> PortWatch {
        self.device.watch()
    }

    /// Has `callback` called with each new state of the link, and at once with a known one. It runs
    /// on the control thread and must not call the port.
    ///
    /// # Errors
    /// The port is closed.
    pub fn on_link_change(&self, callback: impl FnMut(Link) + Send + 'static) -> Result<(), Error> {
        Ok(self.device.on_link_change(callback)?)
    }

    /// Statistics since the last reset.
    ///
    /// # Errors
    /// The device does not answer, or the port is closed.
    pub fn stats(&self) -> Result<PortStats, Error> {
        Ok(self.device.stats()?)
    }

    /// Counts from now on.
    ///
    /// # Errors
    /// As [`stats`](Self::stats).
    pub fn reset_stats(&self) -> Result<(), Error> {
        Ok(self.device.reset_stats()?)
    }

    /// Whether frames for other addresses are received too.
    pub fn promiscuous(&self) -> bool {
        self.device.promiscuous()
    }

    /// Receives frames for other addresses too, or not.
    ///
    /// # Errors
    /// The port is not started, or firmware's refusal.
    pub fn set_promiscuous(&self, on: bool) -> Result<(), Error> {
        Ok(self.device.set_promiscuous(on)?)
    }

    /// The MTU that the device has.
    pub fn mtu(&self) -> usize {
        self.device.mtu()
    }

    /// Sets the MTU of a stopped port.
    ///
    /// # Errors
    /// Outside what the device takes, or the port is started.
    pub fn set_mtu(&self, mtu: usize) -> Result<(), Error> {
        Ok(self.device.set_mtu(mtu)?)
    }

    /// The address that the port receives frames for.
    pub fn mac(&self) -> MacAddress {
        self.device.mac()
    }

    /// Receives frames for another address.
    ///
    /// # Errors
    /// Not the address of one station, or firmware's refusal.
    pub fn set_mac(&self, mac: MacAddress) -> Result<(), Error> {
        Ok(self.device.set_mac(mac)?)
    }

    /// Gives everything back. Does nothing on a closed port.
    ///
    /// # Errors
    /// The first thing that went wrong; the port is closed all the same.
    pub fn close(&self) -> Result<CloseReport, Error> {
        Ok(self.device.close()?)
    }

    /// The driver's port, for what is not here (page counts, faults, events).
    pub fn driver(&self) -> &pollux_mlx5::Port {
        &self.device
    }
}
