//! A started port: its queues on the device and in memory, steering, memory keys.
//!
//! [`Started::new`] makes everything and unmakes it again when a step fails. [`Started::stop`]
//! closes the gates, so that queues which are out become inert, destroys the device's half, and
//! only then lets go of buffers and rings. A queue that is still out keeps its own memory mapped
//! until it is dropped; the UAR page of a send queue is not used again before that.

mod maker;

use crate::bringup::Device;
use crate::capability::InlineMode;
use crate::config::{Limits, PortConfig, PortInfo, RxQueueConfig, TxQueueConfig};
use crate::control::{Control, Watched};
use crate::counters::{RxCounters, TxCounters};
use crate::dma::DmaMemory;
use crate::error::Error;
use crate::gate::Gate;
use crate::memory_key;
use crate::regions::Regions;
use crate::rings::Rings;
use crate::rx::{RxParts, RxQueue, RxRemains};
use crate::shelf::Shelf;
use crate::stack::{Graveyard, Stack};
use crate::steering::Steering;
use crate::tx::{TxParts, TxQueue, TxRemains, cq_entries};
use crate::uars::{UarPage, UarPages};
use crate::vport;
use crate::work_queue::QueueKind;
use maker::{CQE, Made, Maker, RX_WQE, SEND_BLOCK};
use pollux_bus::DmaMapping;
use pollux_mempool::{Pool, SegmentRequest};
use pollux_prm::wqe::{record, uar};
use std::sync::Arc;

/// A queue as the port keeps it.
pub(crate) struct Seat<Q, C> {
    /// Until it is taken.
    pub(crate) queue: Option<Q>,
    pub(crate) counters: Arc<C>,
    pub(crate) gate: Arc<Gate>,
}

/// A started port.
pub(crate) struct Started {
    pub(crate) rx: Vec<Seat<RxQueue, RxCounters>>,
    pub(crate) tx: Vec<Seat<TxQueue, TxCounters>>,
    pub(crate) steering: Option<Steering>,
    stack: Stack,
    shelf: Arc<Shelf>,
    /// Rings and registered segments, mapped until the device's half is gone.
    rings: Option<DmaMemory>,
    mappings: Vec<DmaMapping>,
    watched: Vec<Watched>,
}

/// What a start needs to know beside the configuration.
pub(crate) struct Start<'a> {
    pub(crate) device: &'a Device,
    pub(crate) uars: &'a mut UarPages,
    pub(crate) config: &'a PortConfig,
    pub(crate) number: u16,
    pub(crate) mtu: usize,
    pub(crate) counter_set: Option<u8>,
    pub(crate) max_indirections: usize,
}

fn power_of_two(what: &'static str, given: usize, limits: Limits) -> Result<u32, Error> {
    if given.is_power_of_two() && (limits.min..=limits.max).contains(&given) {
        return Ok(given.trailing_zeros());
    }
    let next = given
        .clamp(limits.min, limits.max)
        .next_power_of_two()
        .min(limits.max);
    Err(Error::Setting {
        what,
        given: given as u64,
        allowed: format!("powers of two from {limits}"),
        remedy: format!("for instance {next}"),
    })
}

/// Checks what can be checked before anything is made.
pub(crate) fn check(config: &PortConfig, mtu: usize, info: &PortInfo) -> Result<(), Error> {
    let count = |what, given: usize, max: usize| {
        if given <= max {
            return Ok(());
        }
        Err(Error::Setting {
            what,
            given: given as u64,
            allowed: format!("at most {max}"),
            remedy: "use fewer queues or several ports".into(),
        })
    };
    count("receive queues", config.rx.len(), info.max_rx_queues)?;
    count("transmit queues", config.tx.len(), info.max_tx_queues)?;
    if config.rx.is_empty() && config.tx.is_empty() {
        return Err(Error::Setting {
            what: "queues",
            given: 0,
            allowed: "1 or more".into(),
            remedy: "configure a receive or a transmit queue".into(),
        });
    }
    for queue in &config.rx {
        power_of_two(
            "receive descriptors",
            queue.descriptors,
            info.rx_descriptors,
        )?;
        let (room, need) = (queue.pool.data_room(), vport::frame(mtu));
        if room < need {
            return Err(Error::Setting {
                what: "bytes of packet in a buffer",
                given: room as u64,
                allowed: format!("{need} or more for an MTU of {mtu}"),
                remedy: format!(
                    "use buffers of {need} bytes, or an MTU of {} or less",
                    room.saturating_sub(vport::frame(0))
                ),
            });
        }
    }
    for queue in &config.tx {
        power_of_two(
            "transmit descriptors",
            queue.descriptors,
            info.tx_descriptors,
        )?;
    }
    Ok(())
}

impl Started {
    /// Makes queues, keys and steering. The port does not receive before this returns.
    ///
    /// # Errors
    /// The first step that failed; all before it is undone (what cannot be undone goes to
    /// `graveyard`).
    pub(crate) fn new(start: Start<'_>, graveyard: &mut Graveyard) -> Result<Self, Error> {
        let control = start.device.control.clone();
        let mut started = Self {
            rx: Vec::new(),
            tx: Vec::new(),
            steering: None,
            stack: Stack::default(),
            shelf: Arc::default(),
            rings: None,
            mappings: Vec::new(),
            watched: Vec::new(),
        };
        match started.make(start) {
            Ok(()) => {
                control.watch_queues(std::mem::take(&mut started.watched));
                Ok(started)
            }
            Err(error) => {
                let errors = started.stop(&control, graveyard);
                tracing::debug!(?errors, "start undone");
                Err(error)
            }
        }
    }

    fn make(&mut self, start: Start<'_>) -> Result<(), Error> {
        let Start {
            device,
            uars,
            config,
            number,
            mtu,
            counter_set,
            max_indirections,
        } = start;
        let regions = Arc::new(self.register(device, config)?);
        let mut sizes = Vec::new();
        for queue in &config.rx {
            sizes.extend([queue.descriptors * RX_WQE, queue.descriptors * CQE]);
        }
        for queue in &config.tx {
            let completions = cq_entries(queue.descriptors) * CQE;
            sizes.extend([queue.descriptors * SEND_BLOCK, completions]);
        }
        let request = SegmentRequest::new(format!("rings of {}", device.name), 1)
            .node(device.node)
            .page(device.pages);
        let domain = device.function.domain();
        let records = 2 * (config.rx.len() + config.tx.len());
        let (mut rings, block) = Rings::new(domain, request, &sizes, records)?;
        self.rings = Some(block);

        for (index, queue) in config.rx.iter().enumerate() {
            let made = Maker {
                device,
                rings: &mut rings,
                stack: &mut self.stack,
            }
            .receive(queue, counter_set, index)?;
            let seat = self.seat_rx(made, queue, &regions, number, index)?;
            self.rx.push(seat);
        }
        if !config.tx.is_empty() {
            let mut maker = Maker {
                device,
                rings: &mut rings,
                stack: &mut self.stack,
            };
            let tis = maker.transport()?;
            let inline_l2 = inline_l2(device)?;
            for (index, queue) in config.tx.iter().enumerate() {
                let page = uars.take(device)?;
                let mut maker = Maker {
                    device,
                    rings: &mut rings,
                    stack: &mut self.stack,
                };
                let made = maker.send(queue, tis, inline_l2, page.number(), index)?;
                let settings = SendSettings {
                    inline_l2,
                    max_len: vport::frame(mtu),
                    max_wqe_len: usize::from(device.capabilities.general.max_wqe_sz_sq()),
                    regions: Arc::clone(&regions),
                };
                let seat = self.seat_tx(made, queue, page, settings, index)?;
                self.tx.push(seat);
            }
        }
        if !config.rx.is_empty() {
            let rqs: Vec<u32> = self
                .watched
                .iter()
                .filter(|w| w.kind == QueueKind::Rx)
                .map(|w| w.number)
                .collect();
            let steering = Steering::new(
                &device.control,
                &mut self.stack,
                device.transport_domain,
                &rqs,
                max_indirections,
            )?;
            self.steering = Some(steering);
        }
        Ok(())
    }

    /// Maps every chunk of every pool and makes its key.
    fn register(&mut self, device: &Device, config: &PortConfig) -> Result<Regions, Error> {
        let mut regions = Regions::new();
        let mut known: Vec<u16> = Vec::new();
        let pools = config
            .rx
            .iter()
            .map(|queue| &queue.pool)
            .chain(&config.pools);
        for pool in pools {
            if known.contains(&pool.id()) {
                continue;
            }
            known.push(pool.id());
            self.register_pool(device, pool, &mut regions)?;
        }
        Ok(regions)
    }

    fn register_pool(
        &mut self,
        device: &Device,
        pool: &Pool,
        regions: &mut Regions,
    ) -> Result<(), Error> {
        for (chunk, segment) in pool.chunks().iter().enumerate() {
            let Some(region) = pool.region(chunk) else {
                continue;
            };
            let mapping = device.function.domain().map(segment)?;
            // Two keys in a row differ in more than their index: a stale key is noticed.
            let variant = (self.mappings.len() as u8).wrapping_mul(37).wrapping_add(1);
            let key = memory_key::create(
                &device.control,
                &mut self.stack,
                device.pd,
                &mapping,
                variant,
                device.capabilities.general.pg(),
            )?;
            regions.add(region, segment.address(), mapping.iova().0, key);
            self.mappings.push(mapping);
        }
        Ok(())
    }

    fn seat_rx(
        &mut self,
        made: Made,
        config: &RxQueueConfig,
        regions: &Arc<Regions>,
        port: u16,
        index: usize,
    ) -> Result<Seat<RxQueue, RxCounters>, Error> {
        let (gate, counters) = (Arc::new(Gate::new()), Arc::new(RxCounters::default()));
        let shelf = Arc::clone(&self.shelf);
        let queue = RxQueue::new(RxParts {
            port,
            queue: index as u16,
            wq: made.wq.window().cells(0, config.descriptors)?,
            cq: made.cq.window().cells(0, config.descriptors)?,
            rq_record: made.wq_record.window().word32(4 * record::RECEIVE)?,
            cq_record: made.cq_record.window().word32(4 * record::CQ_CONSUMER)?,
            pool: config.pool.clone(),
            regions: Arc::clone(regions),
            gate: Arc::clone(&gate),
            counters: Arc::clone(&counters),
            home: Box::new(move |remains: RxRemains| shelf.put(remains)),
        })?;
        self.watched.push(made.watched(QueueKind::Rx, index, &gate));
        Ok(Seat {
            queue: Some(queue),
            counters,
            gate,
        })
    }

    fn seat_tx(
        &mut self,
        made: Made,
        config: &TxQueueConfig,
        page: UarPage,
        settings: SendSettings,
        index: usize,
    ) -> Result<Seat<TxQueue, TxCounters>, Error> {
        let (gate, counters) = (Arc::new(Gate::new()), Arc::new(TxCounters::default()));
        let shelf = Arc::clone(&self.shelf);
        let doorbell = page.registers().doorbell(uar::SEND as u64)?;
        if !doorbell.is_mapped() {
            tracing::warn!(
                queue = index,
                "doorbell is not mapped: every burst calls the device"
            );
        }
        let queue = TxQueue::new(TxParts {
            queue: index as u16,
            sq: made.wq.window().cells(0, config.descriptors)?,
            cq: made.cq.window().cells(0, cq_entries(config.descriptors))?,
            sq_record: made.wq_record.window().word32(4 * record::SEND)?,
            cq_record: made.cq_record.window().word32(4 * record::CQ_CONSUMER)?,
            doorbell,
            sqn: made.number,
            inline_l2: settings.inline_l2,
            chains: config.chains,
            max_len: settings.max_len,
            max_wqe_len: settings.max_wqe_len,
            regions: settings.regions,
            gate: Arc::clone(&gate),
            counters: Arc::clone(&counters),
            // The page goes back for reuse when the queue is gone.
            home: Box::new(move |remains: TxRemains| shelf.put((remains, page))),
        })?;
        self.watched.push(made.watched(QueueKind::Tx, index, &gate));
        Ok(Seat {
            queue: Some(queue),
            counters,
            gate,
        })
    }

    /// Stops everything. Queues that are out are inert from now on. Returns what failed; memory
    /// that the device may still use is in `graveyard` then.
    pub(crate) fn stop(mut self, control: &Control, graveyard: &mut Graveyard) -> Vec<Error> {
        self.rx.iter().for_each(|seat| seat.gate.close());
        self.tx.iter().for_each(|seat| seat.gate.close());
        control.watch_queues(Vec::new());
        let mut errors = Vec::new();
        if let Some(steering) = &mut self.steering {
            errors.extend(steering.clear(control));
        }
        errors.extend(self.stack.unwind(control, graveyard));
        // Queues that were never taken go home now.
        self.rx.clear();
        self.tx.clear();
        if errors.is_empty() {
            self.shelf.free();
        } else {
            graveyard.bury((self.rings, self.mappings));
            graveyard.bury_shelf(self.shelf);
        }
        errors
    }
}

/// Whether send queues want the L2 header in the WQE.
fn inline_l2(device: &Device) -> Result<bool, Error> {
    Ok(match device.capabilities.inline_mode() {
        InlineMode::L2 => true,
        InlineMode::None => false,
        InlineMode::ByVport => vport::context(&device.control)?.min_wqe_inline_mode() > 0,
    })
}

struct SendSettings {
    inline_l2: bool,
    max_len: usize,
    max_wqe_len: usize,
    regions: Arc<Regions>,
}
