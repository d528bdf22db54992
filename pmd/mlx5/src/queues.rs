//! A started port: its queues on the device and in memory, steering, memory keys.
//!
//! [`Started::new`] makes everything and unmakes it again when a step fails. [`Started::stop`]
//! closes the gates, so that queues which are out become inert, destroys the device's half, and
//! only then lets go of buffers and rings. A queue that is still out keeps its own memory mapped
//! until it is dropped; the UAR page of a send queue is not used again before that.

use crate::bringup::Device;
use crate::capability::InlineMode;
use crate::config::{Limits, PortConfig, PortInfo, RxQueueConfig, TxQueueConfig};
use crate::control::{Control, Watched};
use crate::counters::{RxCounters, TxCounters};
use crate::dma::DmaMemory;
use crate::error::{CommandFailure, Error};
use crate::gate::Gate;
use crate::memory_key;
use crate::regions::Regions;
use crate::rings::{Rings, page_list};
use crate::rx::{RxParts, RxQueue, RxRemains, prepare_cq};
use crate::shelf::Shelf;
use crate::stack::{Graveyard, Stack};
use crate::steering::Steering;
use crate::tx::{TxParts, TxQueue, TxRemains, cq_entries};
use crate::uars::{UarPage, UarPages};
use crate::vport;
use crate::work_queue::{self, QueueKind, QueueState};
use pollux_bus::DmaMapping;
use pollux_mempool::{Pool, SegmentRequest};
use pollux_prm::command::Command;
use pollux_prm::commands::cq::{Cqc, CreateCq, DestroyCq};
use pollux_prm::commands::rq::{CreateRq, DestroyRq, MemRqType, Rqc};
use pollux_prm::commands::sq::{CreateSq, DestroySq, EndPadding, Sqc, Wq, WqType};
use pollux_prm::commands::tir::{CreateTis, DestroyTis, Tisc};
use pollux_prm::wqe::{record, uar};
use std::sync::Arc;

/// Bytes of a receive WQE (one data segment), of a send basic block, of a CQE.
const RX_WQE: usize = 16;
const SEND_BLOCK: usize = 64;
const CQE: usize = 64;

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
    pub(crate) counter_set: u8,
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

/// A work queue with its completion queue, as made on the device.
struct Made {
    number: u32,
    cqn: u32,
    wq: DmaMemory,
    cq: DmaMemory,
    wq_record: DmaMemory,
    cq_record: DmaMemory,
}

impl Made {
    fn watched(&self, kind: QueueKind, index: usize, gate: &Arc<Gate>) -> Watched {
        Watched {
            kind,
            index,
            number: self.number,
            cqn: self.cqn,
            gate: Arc::clone(gate),
        }
    }
}

/// Makes queues on the device.
struct Maker<'a> {
    device: &'a Device,
    rings: &'a mut Rings,
    stack: &'a mut Stack,
}

impl Maker<'_> {
    fn control(&self) -> &Control {
        &self.device.control
    }

    /// The transport interface that all send queues share.
    fn transport(&mut self) -> Result<u32, Error> {
        let mut context = Tisc::zeroed();
        context.set_transport_domain(self.device.transport_domain)?;
        let mut input = CreateTis::request();
        input.set_ctx(context);
        let number = self.control().execute::<CreateTis>(&input)?.tisn();
        let mut destroy = DestroyTis::request();
        destroy.set_tisn(number)?;
        self.stack.destroy::<DestroyTis>("TIS", destroy);
        Ok(number)
    }

    fn completion(
        &mut self,
        entries: usize,
        uar_page: u32,
    ) -> Result<(u32, DmaMemory, DmaMemory), Error> {
        let ring = self.rings.ring(entries * CQE)?;
        let record = self.rings.record()?;
        prepare_cq(&ring.window().cells(0, entries)?);
        let (log_page, pages) = page_list(&ring);
        let mut context = Cqc::zeroed();
        context.set_log_cq_size(entries.trailing_zeros() as u8)?;
        context.set_uar_page(uar_page)?;
        context.set_c_eqn_or_apu_element(u32::from(self.device.completion_eq));
        context.set_log_page_size(log_page)?;
        context.set_dbr_addr(record.iova().0);
        let mut input = CreateCq::request();
        input.set_cq_context(context);
        let number = self
            .control()
            .execute_with::<CreateCq>(&input, &pages)?
            .cqn();
        let mut destroy = DestroyCq::request();
        destroy.set_cqn(number)?;
        self.stack.destroy::<DestroyCq>("CQ", destroy);
        Ok((number, ring, record))
    }

    /// The ring's description that send and receive queues share.
    fn ring(
        &self,
        ring: &DmaMemory,
        record: &DmaMemory,
        entries: usize,
        stride: usize,
    ) -> Result<(Wq, Vec<u8>), Error> {
        let (log_page, pages) = page_list(ring);
        let mut wq = Wq::zeroed();
        wq.set_wq_type(WqType::CYCLIC.0)?;
        wq.set_pd(self.device.pd)?;
        wq.set_dbr_addr(record.iova().0);
        wq.set_log_wq_stride(stride.trailing_zeros() as u8)?;
        wq.set_log_wq_pg_sz(log_page)?;
        wq.set_log_wq_sz(entries.trailing_zeros() as u8)?;
        Ok((wq, pages))
    }

    fn receive(
        &mut self,
        config: &RxQueueConfig,
        counter_set: u8,
        index: usize,
    ) -> Result<Made, Error> {
        let (cqn, cq, cq_record) = self.completion(config.descriptors, self.device.uar_page)?;
        let ring = self.rings.ring(config.descriptors * RX_WQE)?;
        let record = self.rings.record()?;
        let (mut wq, pages) = self.ring(&ring, &record, config.descriptors, RX_WQE)?;
        wq.set_end_padding_mode(EndPadding::ALIGN.0)?;
        let mut context = Rqc::zeroed();
        // The packet comes as it is: no VLAN tag is taken out.
        context.set_vsd(true);
        context.set_mem_rq_type(MemRqType::INLINE.0)?;
        context.set_state(QueueState::RESET.0)?;
        context.set_flush_in_error_en(true);
        context.set_cqn(cqn)?;
        context.set_counter_set_id(counter_set);
        context.set_user_index(index as u32)?;
        context.set_wq(wq);
        let mut input = CreateRq::request();
        input.set_ctx(context);
        let number = self
            .control()
            .execute_with::<CreateRq>(&input, &pages)?
            .rqn();
        let mut destroy = DestroyRq::request();
        destroy.set_rqn(number)?;
        self.stack.destroy::<DestroyRq>("RQ", destroy);
        self.ready(QueueKind::Rx, number)?;
        Ok(Made {
            number,
            cqn,
            wq: ring,
            cq,
            wq_record: record,
            cq_record,
        })
    }

    fn send(
        &mut self,
        config: &TxQueueConfig,
        tis: u32,
        inline_l2: bool,
        uar_page: u32,
        index: usize,
    ) -> Result<Made, Error> {
        let (cqn, cq, cq_record) = self.completion(cq_entries(config.descriptors), uar_page)?;
        let ring = self.rings.ring(config.descriptors * SEND_BLOCK)?;
        let record = self.rings.record()?;
        let (mut wq, pages) = self.ring(&ring, &record, config.descriptors, SEND_BLOCK)?;
        wq.set_uar_page(uar_page)?;
        let mut context = Sqc::zeroed();
        context.set_flush_in_error_en(true);
        context.set_min_wqe_inline_mode(u8::from(inline_l2))?;
        context.set_state(QueueState::RESET.0)?;
        context.set_user_index(index as u32)?;
        context.set_cqn(cqn)?;
        context.set_tis_lst_sz(1);
        context.set_tis_num_0(tis)?;
        context.set_wq(wq);
        let mut input = CreateSq::request();
        input.set_ctx(context);
        let number = self
            .control()
            .execute_with::<CreateSq>(&input, &pages)?
            .sqn();
        let mut destroy = DestroySq::request();
        destroy.set_sqn(number)?;
        self.stack.destroy::<DestroySq>("SQ", destroy);
        self.ready(QueueKind::Tx, number)?;
        Ok(Made {
            number,
            cqn,
            wq: ring,
            cq,
            wq_record: record,
            cq_record,
        })
    }

    /// Brings a queue from reset to ready; its undo brings it back.
    fn ready(&mut self, kind: QueueKind, number: u32) -> Result<(), Error> {
        let (input, output_len) =
            work_queue::modify(kind, number, QueueState::RESET, QueueState::READY)?;
        self.control().execute_bytes(input, output_len)?;
        self.stack.push("queue ready", move |control, _| {
            let (input, output_len) =
                work_queue::modify(kind, number, QueueState::READY, QueueState::RESET)?;
            match control.execute_bytes(input, output_len) {
                // A queue in error is not ready; destroying it is as good.
                Ok(_) | Err(CommandFailure::Refused(_)) => Ok(()),
                Err(failure) => Err(failure.into()),
            }
        });
        Ok(())
    }
}
