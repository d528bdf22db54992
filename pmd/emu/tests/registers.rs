//! Port registers through ACCESS_REG: what they say, what can be written, what is refused.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // tests fail loudly

mod driver;

use driver::{Driver, Refused};
use pollux_emu::syndrome::{Reason, parts};
use pollux_emu::{FunctionConfig, Model, Module};
use pollux_prm::command::Status;
use pollux_prm::commands::port_counters::Ppcnt;
use pollux_prm::commands::register::*;

fn port(model: Model) -> Driver {
    let mut driver = Driver::one(FunctionConfig {
        model,
        ..Default::default()
    });
    driver.bring_up();
    driver
}

fn access<R: Register>(
    driver: &mut Driver,
    register: &R,
    direction: RegisterAccess,
) -> Result<R, Refused> {
    let input = register.access(direction);
    let out = driver.try_raw(&input, input.len())?;
    Ok(R::from_access(&out).unwrap())
}

fn of_port<R: Register>() -> R {
    let mut register = R::default();
    register.set_value_of("local_port", 1).unwrap();
    register
}

fn read<R: Register>(driver: &mut Driver) -> R {
    access(driver, &of_port::<R>(), RegisterAccess::READ).unwrap()
}

fn refused<R: Register>(driver: &mut Driver, register: &R, direction: RegisterAccess) -> Reason {
    let why = access(driver, register, direction).unwrap_err();
    let (reason, ..) = parts(why.syndrome).unwrap();
    assert_eq!(why.status, reason.status(), "{}", why.text());
    reason
}

#[test]
fn speeds_are_those_of_the_model() {
    let plain = |modes: &[LinkMode]| modes.iter().fold(0, |all, mode| all | mode.bit());
    let cases = [
        (
            Model::ConnectX4Lx,
            plain(&[LinkMode::CR_10GBASE, LinkMode::CR_25GBASE]),
            25_000,
        ),
        (
            Model::ConnectX5,
            plain(&[
                LinkMode::CR_10GBASE,
                LinkMode::CR_25GBASE,
                LinkMode::CR4_40GBASE,
                LinkMode::CR2_50GBASE,
                LinkMode::CR4_100GBASE,
            ]),
            100_000,
        ),
    ];
    for (model, can, speed) in cases {
        let mut driver = port(model);
        let mut asked = of_port::<Ptys>();
        asked.set_proto_mask(PtysProtocol::EN.0).unwrap();
        let now = access(&mut driver, &asked, RegisterAccess::READ).unwrap();
        assert_eq!(
            (now.eth_proto_capability(), now.eth_proto_admin()),
            (can, can)
        );
        assert_eq!(
            LinkMode(now.eth_proto_oper().trailing_zeros() as u8).mbps(),
            speed
        );
        assert_eq!(now.eth_proto_oper().count_ones(), 1);
        // Extended modes are announced by PCAM, which these models do not have.
        assert_eq!(now.ext_eth_proto_capability(), 0);
        assert_eq!(
            refused(&mut driver, &Pcam::zeroed(), RegisterAccess::READ),
            Reason::UnknownRegister
        );
        // A slower one, and one that the model does not have.
        asked.set_eth_proto_admin(LinkMode::CR_10GBASE.bit());
        let now = access(&mut driver, &asked, RegisterAccess::WRITE).unwrap();
        assert_eq!(now.eth_proto_oper(), LinkMode::CR_10GBASE.bit());
        asked.set_eth_proto_admin(LinkMode::R4_56GBASE.bit());
        assert_eq!(
            refused(&mut driver, &asked, RegisterAccess::WRITE),
            Reason::RegisterValue
        );
        asked.set_eth_proto_admin(0);
        assert_eq!(
            refused(&mut driver, &asked, RegisterAccess::WRITE),
            Reason::RegisterValue
        );
        // Other protocols than Ethernet.
        let mut other = of_port::<Ptys>();
        other.set_proto_mask(PtysProtocol::IB.0).unwrap();
        assert_eq!(
            refused(&mut driver, &other, RegisterAccess::READ),
            Reason::RegisterValue
        );
    }
}

#[test]
fn the_newest_have_extended_modes_and_say_so() {
    let mut driver = port(Model::ConnectX7);
    let cap = access(&mut driver, &Pcam::zeroed(), RegisterAccess::READ).unwrap();
    for register in [
        RegisterId::PTYS,
        RegisterId::PAOS,
        RegisterId::PMTU,
        RegisterId::PPCNT,
    ] {
        assert!(mask_names(&cap.registers(), register), "{register}");
    }
    assert!(!mask_names(&cap.registers(), RegisterId::PPLM));
    // ptys_extended_ethernet.
    assert_eq!(cap.features()[14] >> 5 & 1, 1);
    let mut asked = of_port::<Ptys>();
    asked.set_proto_mask(PtysProtocol::EN.0).unwrap();
    let now = access(&mut driver, &asked, RegisterAccess::READ).unwrap();
    assert_eq!(now.ext_eth_proto_oper(), ExtLinkMode::GAUI_4_200G.bit());
    // 200 Gbit/s has no bit among the older modes.
    assert_eq!(now.eth_proto_oper(), 0);
    asked.set_ext_eth_proto_admin(ExtLinkMode::CAUI_4_100G.bit());
    let now = access(&mut driver, &asked, RegisterAccess::WRITE).unwrap();
    assert_eq!(now.ext_eth_proto_oper(), ExtLinkMode::CAUI_4_100G.bit());
    assert_eq!(now.eth_proto_oper(), LinkMode::CR4_100GBASE.bit());
}

#[test]
fn mtu_is_kept_inside_its_limits() {
    let mut driver = port(Model::ConnectX5);
    let now = read::<Pmtu>(&mut driver);
    assert_eq!(
        (now.max_mtu(), now.admin_mtu(), now.oper_mtu()),
        (10_000, 1522, 1522)
    );
    let mut register = of_port::<Pmtu>();
    for mtu in [68, 9000, 10_000] {
        register.set_admin_mtu(mtu);
        access(&mut driver, &register, RegisterAccess::WRITE).unwrap();
        assert_eq!(read::<Pmtu>(&mut driver).oper_mtu(), mtu);
    }
    for mtu in [0, 67, 10_001, u16::MAX] {
        register.set_admin_mtu(mtu);
        assert_eq!(
            refused(&mut driver, &register, RegisterAccess::WRITE),
            Reason::RegisterValue
        );
    }
    assert_eq!(read::<Pmtu>(&mut driver).oper_mtu(), 10_000);
    // What can only be read.
    register.set_admin_mtu(1522).set_max_mtu(2000);
    assert_eq!(
        refused(&mut driver, &register, RegisterAccess::WRITE),
        Reason::RegisterValue
    );
}

#[test]
fn the_port_can_be_switched_off_and_on() {
    let mut driver = port(Model::ConnectX5);
    let mut register = of_port::<Paos>();
    let states = |driver: &mut Driver| {
        let now = read::<Paos>(driver);
        (
            PortStatus(now.admin_status()),
            PortStatus(now.oper_status()),
        )
    };
    assert_eq!(states(&mut driver), (PortStatus::UP, PortStatus::UP));
    for status in [PortStatus::DOWN, PortStatus::UP] {
        register.set_ase(true).set_admin_status(status.0).unwrap();
        access(&mut driver, &register, RegisterAccess::WRITE).unwrap();
        assert_eq!(states(&mut driver), (status, status));
    }
    register.set_admin_status(7).unwrap();
    assert_eq!(
        refused(&mut driver, &register, RegisterAccess::WRITE),
        Reason::RegisterValue
    );
    register.set_ase(false).set_admin_status(1).unwrap();
    assert_eq!(
        refused(&mut driver, &register, RegisterAccess::WRITE),
        Reason::RegisterValue
    );
}

#[test]
fn a_link_that_is_down_has_a_reason() {
    let driver = &mut port(Model::ConnectX5);
    let mut question = of_port::<Pddr>();
    assert_eq!(
        refused(driver, &question, RegisterAccess::READ),
        Reason::RegisterValue,
        "no page"
    );
    question.set_page_select(PDDR_TROUBLESHOOTING);
    let reason = |driver: &mut Driver| {
        let answer = access(driver, &question, RegisterAccess::READ).unwrap();
        let page = answer.page();
        let text: Vec<u8> = page
            .status_message()
            .into_iter()
            .take_while(|b| *b != 0)
            .collect();
        (
            LinkTroubleCode(page.status_opcode()),
            String::from_utf8(text).unwrap(),
        )
    };
    let faults = driver.emulator.faults(0).unwrap();
    assert_eq!(reason(driver).0, LinkTroubleCode::NONE);
    for (module, code) in [
        (Module::Absent, LinkTroubleCode::NO_CABLE),
        (Module::Unsupported, LinkTroubleCode::UNSUPPORTED_MODULE),
        (Module::Hot, LinkTroubleCode::OVERHEATED_MODULE),
        (Module::Dark, LinkTroubleCode::NO_PARTNER),
    ] {
        faults.module(module).unwrap();
        let (said, text) = reason(driver);
        assert_eq!(said, code);
        assert!(!text.is_empty());
    }
    faults.module(Module::Present).unwrap();
    assert_eq!(reason(driver).0, LinkTroubleCode::NONE);
    faults.link(false).unwrap();
    assert_eq!(reason(driver).0, LinkTroubleCode::NO_PARTNER);
    assert_eq!(
        refused(driver, &question, RegisterAccess::WRITE),
        Reason::UnknownRegister
    );
}

#[test]
fn lanes_pause_and_check_sequences() {
    let mut driver = port(Model::ConnectX5);
    let now = read::<Pmlp>(&mut driver);
    assert_eq!(
        (
            now.width(),
            now.lanes()[3].rx_lane(),
            now.lanes()[3].module()
        ),
        (4, 3, 0)
    );
    // No pause, and none can be had.
    let mut pfcc = of_port::<Pfcc>();
    assert_eq!(
        access(&mut driver, &pfcc, RegisterAccess::WRITE).unwrap(),
        pfcc
    );
    pfcc.set_pptx(true);
    assert_eq!(
        refused(&mut driver, &pfcc, RegisterAccess::WRITE),
        Reason::RegisterValue
    );
    // Check sequences are checked, always.
    let now = read::<Pcmr>(&mut driver);
    assert!(now.fcs_chk() && !now.fcs_cap());
    assert_eq!(
        refused(&mut driver, &of_port::<Pcmr>(), RegisterAccess::WRITE),
        Reason::RegisterValue
    );
    let mut same = of_port::<Pcmr>();
    same.set_fcs_chk(true);
    access(&mut driver, &same, RegisterAccess::WRITE).unwrap();
}

#[test]
fn other_ports_groups_and_registers_are_refused() {
    let mut driver = port(Model::ConnectX6Dx);
    let mut other = of_port::<Pmtu>();
    other.set_local_port(2);
    assert_eq!(
        refused(&mut driver, &other, RegisterAccess::READ),
        Reason::RegisterValue
    );
    let mut counters = of_port::<Ppcnt>();
    counters.set_grp(0x13).unwrap();
    assert_eq!(
        refused(&mut driver, &counters, RegisterAccess::READ),
        Reason::RegisterValue
    );
    counters.set_grp(0x10).unwrap();
    counters.set_prio_tc(8).unwrap();
    assert_eq!(
        refused(&mut driver, &counters, RegisterAccess::READ),
        Reason::RegisterValue
    );
    counters.set_prio_tc(7).unwrap();
    access(&mut driver, &counters, RegisterAccess::READ).unwrap();
    // Counters cannot be written, nor can what nobody announced be read.
    assert_eq!(
        refused(&mut driver, &of_port::<Ppcnt>(), RegisterAccess::WRITE),
        Reason::UnknownRegister
    );
    assert_eq!(
        refused(&mut driver, &Mcam::zeroed(), RegisterAccess::READ),
        Reason::UnknownRegister
    );
    assert_eq!(
        refused(&mut driver, &Qcam::zeroed(), RegisterAccess::READ),
        Reason::UnknownRegister
    );
    assert_eq!(
        refused(&mut driver, &Dtor::zeroed(), RegisterAccess::READ),
        Reason::UnknownRegister
    );
    // A register that is cut short, and a host of the other byte order.
    let input = of_port::<Pmtu>().access(RegisterAccess::READ);
    let why = driver.try_raw(&input[..input.len() - 4], 64).unwrap_err();
    assert_eq!(why.status, Status::BAD_INP_LEN_ERR);
    let mut order = HostEndianness::zeroed();
    access(&mut driver, &order, RegisterAccess::WRITE).unwrap();
    order.set_he(true);
    assert_eq!(
        refused(&mut driver, &order, RegisterAccess::WRITE),
        Reason::RegisterValue
    );
}
