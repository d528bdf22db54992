//! Queues on the device: completion, receive and send queues, each with its ring and doorbell
//! record, and their undo.

use crate::bringup::Device;
use crate::config::{RxQueueConfig, TxQueueConfig};
use crate::control::{Control, Watched};
use crate::dma::DmaMemory;
use crate::error::{CommandFailure, Error};
use crate::gate::Gate;
use crate::rings::{Rings, page_list};
use crate::rx::prepare_cq;
use crate::stack::Stack;
use crate::tx::cq_entries;
use crate::work_queue::{self, QueueKind, QueueState};
use pollux_prm::command::Command;
use pollux_prm::commands::cq::{Cqc, CreateCq, DestroyCq};
use pollux_prm::commands::rq::{CreateRq, DestroyRq, MemRqType, Rqc};
use pollux_prm::commands::sq::{CreateSq, DestroySq, EndPadding, Sqc, Wq, WqType};
use pollux_prm::commands::tir::{CreateTis, DestroyTis, Tisc};
use std::sync::Arc;

/// Bytes of a receive WQE (one data segment), of a send basic block, of a CQE.
pub(super) const RX_WQE: usize = 16;
pub(super) const SEND_BLOCK: usize = 64;
pub(super) const CQE: usize = 64;

/// A work queue with its completion queue, as made on the device.
pub(super) struct Made {
    pub(super) number: u32,
    pub(super) cqn: u32,
    pub(super) wq: DmaMemory,
    pub(super) cq: DmaMemory,
    pub(super) wq_record: DmaMemory,
    pub(super) cq_record: DmaMemory,
}

impl Made {
    pub(super) fn watched(&self, kind: QueueKind, index: usize, gate: &Arc<Gate>) -> Watched {
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
pub(super) struct Maker<'a> {
    pub(super) device: &'a Device,
    pub(super) rings: &'a mut Rings,
    pub(super) stack: &'a mut Stack,
}

impl Maker<'_> {
    fn control(&self) -> &Control {
        &self.device.control
    }

    /// The transport interface that all send queues share.
    pub(super) fn transport(&mut self) -> Result<u32, Error> {
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

    pub(super) fn receive(
        &mut self,
        config: &RxQueueConfig,
        counter_set: Option<u8>,
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
        if let Some(counter_set) = counter_set {
            context.set_counter_set_id(counter_set);
        }
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

    pub(super) fn send(
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
