//! One of everything: a function on which each kind of object exists and is used.

use super::{Driver, words};
use pollux_emu::{FunctionConfig, Model};
use pollux_prm::Command;
use pollux_prm::commands::counters::*;
use pollux_prm::commands::cq::*;
use pollux_prm::commands::flow::*;
use pollux_prm::commands::matching::FteMatchParam;
use pollux_prm::commands::protection::*;
use pollux_prm::commands::rq::*;
use pollux_prm::commands::sq::*;
use pollux_prm::commands::tir::*;
use zerocopy::IntoBytes;

pub struct World {
    pub driver: Driver,
    pub uar: u32,
    pub eqn: u8,
    pub pd: u32,
    pub domain: u32,
    pub mkey: u32,
    pub counter: u8,
    /// 0 for a model without.
    pub flow_counter: u32,
    pub cqn: u32,
    pub tisn: u32,
    pub sqn: u32,
    pub rqn: u32,
    pub rqtn: u32,
    pub tirn: u32,
    pub table: u32,
    /// A table on a higher level.
    pub next_table: u32,
    pub group: u32,
    /// Memory that queues may lie in; nothing runs there.
    pub ring: usize,
    pub record: usize,
}

/// Logarithm of the entries of all rings here: one page of work queue, one of completions.
pub const LOG_RING: u8 = 6;

impl World {
    pub fn new(model: Model) -> Self {
        let function = FunctionConfig {
            model,
            ..FunctionConfig::default()
        };
        let mut driver = Driver::one(function);
        driver.bring_up();
        Self::on(driver)
    }

    /// On a function that runs already.
    pub fn on(mut driver: Driver) -> Self {
        let uar = driver.uar();
        let (eqn, _) = driver.eq(uar, 0, [0; 4], 6);
        let pd = driver.call::<AllocPd>(&AllocPd::request()).unwrap().pd();
        let domain = AllocTransportDomain::request();
        let domain = driver
            .call::<AllocTransportDomain>(&domain)
            .unwrap()
            .transport_domain();
        let counter = driver
            .call::<AllocQCounter>(&AllocQCounter::request())
            .unwrap();
        // Not every model has them.
        let flow_counter = driver.call::<AllocFlowCounter>(&AllocFlowCounter::request());
        let (ring, record) = (driver.take(4096), driver.take(4096));
        let mut world = Self {
            driver,
            uar,
            eqn,
            pd,
            domain,
            mkey: 0,
            counter: counter.counter_set_id(),
            flow_counter: flow_counter.map_or(0, |out| out.flow_counter_id()),
            cqn: 0,
            tisn: 0,
            sqn: 0,
            rqn: 0,
            rqtn: 0,
            tirn: 0,
            table: 0,
            next_table: 0,
            group: 0,
            ring,
            record,
        };
        world.mkey = world.make::<CreateMkey>(world.mkey_input()).mkey_index();
        world.cqn = world.make::<CreateCq>(world.cq_input()).cqn();
        world.tisn = world.make::<CreateTis>(world.tis_input()).tisn();
        world.sqn = world.make::<CreateSq>(world.sq_input()).sqn();
        world.rqn = world.make::<CreateRq>(world.rq_input()).rqn();
        world.rqtn = world.make::<CreateRqt>(world.rqt_input()).rqtn();
        world.tirn = world.make::<CreateTir>(world.tir_input()).tirn();
        world.next_table = world
            .make::<CreateFlowTable>(world.table_input(1))
            .table_id();
        world.table = world
            .make::<CreateFlowTable>(world.table_input(0))
            .table_id();
        world.group = world
            .make::<CreateFlowGroup>(world.group_input(0, 3))
            .group_id();
        world.make::<SetFlowTableEntry>(world.entry_input(0));
        world
    }

    /// Sends an input with its tail; the fixed output.
    pub fn make<C: Command>(&mut self, input: Vec<u8>) -> C::Output {
        use pollux_prm::Layout;
        use zerocopy::FromBytes;
        let out = self.driver.try_raw(&input, C::Output::LEN);
        let out = out.unwrap_or_else(|why| panic!("{why:?} {}", why.text()));
        C::Output::read_from_prefix(&out).unwrap().0
    }

    pub fn page(&self) -> Vec<u8> {
        self.driver.page_list(self.ring, 4096)
    }

    pub fn mkey_input(&self) -> Vec<u8> {
        let mut input = CreateMkey::request();
        let mut context = Mkc::zeroed();
        context
            .set_lw(true)
            .set_lr(true)
            .set_length64(true)
            .set_mkey_7_0(0x5a);
        context.set_qpn(0xff_ffff).unwrap();
        context.set_pd(self.pd).unwrap();
        input.set_memory_key_mkey_entry(context);
        input.as_bytes().to_vec()
    }

    pub fn cq_input(&self) -> Vec<u8> {
        let mut input = CreateCq::request();
        let mut context = Cqc::zeroed();
        context.set_log_cq_size(LOG_RING).unwrap();
        context.set_uar_page(self.uar).unwrap();
        context.set_c_eqn_or_apu_element(self.eqn.into());
        context.set_dbr_addr(self.driver.iova(self.record));
        input.set_cq_context(context);
        [input.as_bytes(), &self.page()].concat()
    }

    pub fn tis_input(&self) -> Vec<u8> {
        let mut input = CreateTis::request();
        let mut context = Tisc::zeroed();
        context.set_transport_domain(self.domain).unwrap();
        input.set_ctx(context);
        input.as_bytes().to_vec()
    }

    fn wq(&self, stride: u8) -> Wq {
        let mut wq = Wq::zeroed();
        wq.set_wq_type(1).unwrap();
        wq.set_pd(self.pd).unwrap();
        wq.set_dbr_addr(self.driver.iova(self.record) + 64);
        wq.set_log_wq_stride(stride).unwrap();
        wq.set_log_wq_sz(LOG_RING).unwrap();
        wq
    }

    pub fn sq_input(&self) -> Vec<u8> {
        let mut input = CreateSq::request();
        let mut context = Sqc::zeroed();
        context.set_cqn(self.cqn).unwrap();
        context.set_tis_lst_sz(1);
        context.set_tis_num_0(self.tisn).unwrap();
        let mut wq = self.wq(6);
        wq.set_uar_page(self.uar).unwrap();
        context.set_wq(wq);
        input.set_ctx(context);
        [input.as_bytes(), &self.page()].concat()
    }

    pub fn rq_input(&self) -> Vec<u8> {
        let mut input = CreateRq::request();
        let mut context = Rqc::zeroed();
        context.set_cqn(self.cqn).unwrap();
        context.set_counter_set_id(self.counter);
        context.set_wq(self.wq(4));
        input.set_ctx(context);
        [input.as_bytes(), &self.page()].concat()
    }

    pub fn rqt_input(&self) -> Vec<u8> {
        let mut input = CreateRqt::request();
        let mut context = Rqtc::zeroed();
        context.set_rqt_max_size(4).set_rqt_actual_size(1);
        input.set_rqt_context(context);
        [input.as_bytes(), &words(&[self.rqn])].concat()
    }

    /// A direct TIR, so that queue and table can be told apart.
    pub fn tir_input(&self) -> Vec<u8> {
        let mut input = CreateTir::request();
        let mut context = Tirc::zeroed();
        context.set_disp_type(1).unwrap();
        context.set_indirect_table(self.rqtn).unwrap();
        context.set_transport_domain(self.domain).unwrap();
        input.set_ctx(context);
        input.as_bytes().to_vec()
    }

    pub fn table_input(&self, level: u8) -> Vec<u8> {
        let mut input = CreateFlowTable::request();
        let mut context = FlowTableContext::zeroed();
        context.set_level(level).set_log_size(4);
        input.set_flow_table_context(context);
        input.as_bytes().to_vec()
    }

    pub fn group_input(&self, first: u32, last: u32) -> Vec<u8> {
        let mut input = CreateFlowGroup::request();
        input.set_table_id(self.table).unwrap();
        input.set_start_flow_index(first).set_end_flow_index(last);
        input.set_match_criteria(FteMatchParam::zeroed());
        input.as_bytes().to_vec()
    }

    /// An entry that counts, where the model can, and goes to the TIR.
    pub fn entry_input(&self, index: u32) -> Vec<u8> {
        let mut input = SetFlowTableEntry::request();
        input.set_table_id(self.table).unwrap();
        input.set_flow_index(index);
        let mut context = FlowContext::zeroed();
        let counts = self.flow_counter != 0;
        context
            .set_group_id(self.group)
            .set_action(if counts { 0x4 | 0x8 } else { 0x4 });
        context.set_destination_list_size(1).unwrap();
        context.set_flow_counter_list_size(counts.into()).unwrap();
        input.set_flow_context(context);
        let mut to = Destination::zeroed();
        to.set_destination_type(2)
            .set_destination_id(self.tirn)
            .unwrap();
        let mut bytes = [input.as_bytes(), to.as_bytes()].concat();
        if counts {
            let mut counter = CounterEntry::zeroed();
            counter.set_flow_counter_id(self.flow_counter);
            bytes.extend_from_slice(counter.bytes());
        }
        bytes
    }
}
