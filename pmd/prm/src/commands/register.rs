//! `ACCESS_REG` and the port registers.
//!
//! A register is the tail of the command, in both directions; `op_mod` chooses the direction.

use crate::command::command;
use crate::layout::{Layout, layout};
use crate::open_enum::open_enum;

command! {
    /// Reads or writes a register; the tail is the register, in 32-bit words.
    AccessReg = ACCESS_REG "access_register", AccessRegIn + 4 => AccessRegOut + 4;
}

layout! {
    /// Input of `ACCESS_REG`.
    pub struct AccessRegIn = "mlx5_ifc_access_register_in_bits", 16 bytes {
        opcode set_opcode: u16 @ 0x0 +16;
        /// A [`RegisterAccess`].
        op_mod set_op_mod: u16 @ 0x30 +16;
        /// A [`RegisterId`].
        register_id set_register_id: u16 @ 0x50 +16;
        argument set_argument: u32 @ 0x60 +32;
    }

    /// Output of `ACCESS_REG`.
    pub struct AccessRegOut = "mlx5_ifc_access_register_out_bits", 16 bytes {
        status set_status: u8 @ 0x0 +8;
        syndrome set_syndrome: u32 @ 0x20 +32;
    }

    /// Port type and speed (PTYS).
    pub struct Ptys = "mlx5_ifc_ptys_reg_bits", 64 bytes {
        an_disable_admin set_an_disable_admin: bool @ 0x1;
        an_disable_cap set_an_disable_cap: bool @ 0x2;
        local_port set_local_port: u8 @ 0x8 +8;
        plane_ind set_plane_ind: u8 @ 0x18 +4;
        /// A [`PtysProtocol`].
        proto_mask set_proto_mask: u8 @ 0x1d +3;
        /// An [`AutoNegotiation`].
        an_status set_an_status: u8 @ 0x20 +4;
        data_rate_oper set_data_rate_oper: u16 @ 0x30 +16;
        /// Bits of [`ExtLinkMode`].
        ext_eth_proto_capability set_ext_eth_proto_capability: u32 @ 0x40 +32;
        /// Bits of [`LinkMode`].
        eth_proto_capability set_eth_proto_capability: u32 @ 0x60 +32;
        ib_link_width_capability set_ib_link_width_capability: u16 @ 0x80 +16;
        ib_proto_capability set_ib_proto_capability: u16 @ 0x90 +16;
        /// Bits of [`ExtLinkMode`].
        ext_eth_proto_admin set_ext_eth_proto_admin: u32 @ 0xa0 +32;
        /// Bits of [`LinkMode`].
        eth_proto_admin set_eth_proto_admin: u32 @ 0xc0 +32;
        ib_link_width_admin set_ib_link_width_admin: u16 @ 0xe0 +16;
        ib_proto_admin set_ib_proto_admin: u16 @ 0xf0 +16;
        /// Bits of [`ExtLinkMode`].
        ext_eth_proto_oper set_ext_eth_proto_oper: u32 @ 0x100 +32;
        /// Bits of [`LinkMode`].
        eth_proto_oper set_eth_proto_oper: u32 @ 0x120 +32;
        ib_link_width_oper set_ib_link_width_oper: u16 @ 0x140 +16;
        ib_proto_oper set_ib_proto_oper: u16 @ 0x150 +16;
        connector_type set_connector_type: u8 @ 0x17c +4;
        eth_proto_lp_advertise set_eth_proto_lp_advertise: u32 @ 0x180 +32;
    }

    /// Port administrative and operational status (PAOS).
    pub struct Paos = "mlx5_ifc_paos_reg_bits", 16 bytes {
        swid set_swid: u8 @ 0x0 +8;
        local_port set_local_port: u8 @ 0x8 +8;
        /// A [`PortStatus`].
        admin_status set_admin_status: u8 @ 0x14 +4;
        /// A [`PortStatus`].
        oper_status set_oper_status: u8 @ 0x1c +4;
        /// `admin_status` is to be set.
        ase set_ase: bool @ 0x20;
        /// `e` is to be set.
        ee set_ee: bool @ 0x21;
        /// When the port raises events: 0 never, 1 always, 2 once.
        e set_e: u8 @ 0x3e +2;
    }

    /// Port MTU (PMTU).
    pub struct Pmtu = "mlx5_ifc_pmtu_reg_bits", 16 bytes {
        local_port set_local_port: u8 @ 0x8 +8;
        max_mtu set_max_mtu: u16 @ 0x20 +16;
        admin_mtu set_admin_mtu: u16 @ 0x40 +16;
        oper_mtu set_oper_mtu: u16 @ 0x60 +16;
    }

    /// Port diagnostics (PDDR), with its troubleshooting page ([`PDDR_TROUBLESHOOTING`]).
    pub struct Pddr = "mlx5_ifc_pddr_reg_bits", 256 bytes {
        local_port set_local_port: u8 @ 0x8 +8;
        pnat set_pnat: u8 @ 0x10 +2;
        page_select set_page_select: u8 @ 0x38 +8;
        page set_page: PddrTroubleshooting @ 0x40 as "page_data";
    }

    /// Why the link is not up.
    pub struct PddrTroubleshooting = "mlx5_ifc_pddr_troubleshooting_page_bits", 248 bytes {
        group_opcode set_group_opcode: u16 @ 0x10 +16;
        /// A [`LinkTroubleCode`]; its upper half is reserved.
        status_opcode set_status_opcode: u32 @ 0x20 +32;
        /// The same in words, as far as firmware has them.
        status_message set_status_message: [u8; 236] @ 0x60;
    }

    /// Which module and lanes a port uses (PMLP).
    pub struct Pmlp = "mlx5_ifc_pmlp_reg_bits", 64 bytes {
        rxtx set_rxtx: bool @ 0x0;
        local_port set_local_port: u8 @ 0x8 +8;
        width set_width: u8 @ 0x18 +8;
        lanes set_lanes: [PmlpLane; 4] @ 0x20
            span "lane0_module_mapping" "lane3_module_mapping";
    }

    /// One lane of [`Pmlp`].
    pub struct PmlpLane = "mlx5_ifc_lane_2_module_mapping_bits", 4 bytes {
        rx_lane set_rx_lane: u8 @ 0x4 +4;
        tx_lane set_tx_lane: u8 @ 0xc +4;
        module set_module: u8 @ 0x18 +8;
    }

    /// Flow control (PFCC).
    pub struct Pfcc = "mlx5_ifc_pfcc_reg_bits", 32 bytes {
        buf_ownership set_buf_ownership: u8 @ 0x4 +2;
        local_port set_local_port: u8 @ 0x8 +8;
        ppan_mask_n set_ppan_mask_n: bool @ 0x1b;
        minor_stall_mask set_minor_stall_mask: bool @ 0x1c;
        critical_stall_mask set_critical_stall_mask: bool @ 0x1d;
        ppan set_ppan: u8 @ 0x20 +4;
        prio_mask_tx set_prio_mask_tx: u8 @ 0x28 +8;
        prio_mask_rx set_prio_mask_rx: u8 @ 0x38 +8;
        pptx set_pptx: bool @ 0x40;
        aptx set_aptx: bool @ 0x41;
        pptx_mask_n set_pptx_mask_n: bool @ 0x42;
        pfctx set_pfctx: u8 @ 0x48 +8;
        pprx set_pprx: bool @ 0x60;
        aprx set_aprx: bool @ 0x61;
        pprx_mask_n set_pprx_mask_n: bool @ 0x62;
        pfcrx set_pfcrx: u8 @ 0x68 +8;
        device_stall_minor_watermark set_device_stall_minor_watermark: u16 @ 0x80 +16;
        device_stall_critical_watermark set_device_stall_critical_watermark: u16 @ 0x90 +16;
    }

    /// Frame check sequence handling (PCMR).
    pub struct Pcmr = "mlx5_ifc_pcmr_reg_bits", 12 bytes {
        local_port set_local_port: u8 @ 0x8 +8;
        entropy_force_cap set_entropy_force_cap: bool @ 0x20;
        entropy_calc_cap set_entropy_calc_cap: bool @ 0x21;
        entropy_gre_calc_cap set_entropy_gre_calc_cap: bool @ 0x22;
        rx_ts_over_crc_cap set_rx_ts_over_crc_cap: bool @ 0x32;
        fcs_cap set_fcs_cap: bool @ 0x3e;
        entropy_force set_entropy_force: bool @ 0x40;
        entropy_calc set_entropy_calc: bool @ 0x41;
        entropy_gre_calc set_entropy_gre_calc: bool @ 0x42;
        rx_ts_over_crc set_rx_ts_over_crc: bool @ 0x52;
        fcs_chk set_fcs_chk: bool @ 0x5e;
    }

    /// Byte order of the host (HOST_ENDIANNESS).
    pub struct HostEndianness = "mlx5_ifc_register_host_endianness_bits", 16 bytes {
        /// Set on a big-endian host.
        he set_he: bool @ 0x0;
    }

    /// Which port registers and features the device has (PCAM).
    pub struct Pcam = "mlx5_ifc_pcam_reg_bits", 80 bytes {
        feature_group set_feature_group: u8 @ 0x8 +8;
        access_reg_group set_access_reg_group: u8 @ 0x18 +8;
        /// Bit `n` counted from the end: register `0x5000 + n`.
        registers set_registers: [u8; 16] @ 0x40 as "port_access_reg_cap_mask";
        /// Feature bits, counted from the end.
        features set_features: [u8; 16] @ 0x140 as "feature_cap_mask";
    }

    /// Which management registers and features the device has (MCAM).
    pub struct Mcam = "mlx5_ifc_mcam_reg_bits", 72 bytes {
        feature_group set_feature_group: u8 @ 0x8 +8;
        access_reg_group set_access_reg_group: u8 @ 0x18 +8;
        /// Bit `n` counted from the end: register `0x9000 + n` (group 0).
        registers set_registers: [u8; 16] @ 0x40 as "mng_access_reg_cap_mask";
        /// Feature bits, counted from the end.
        features set_features: [u8; 16] @ 0x140 as "mng_feature_cap_mask";
    }

    /// Which QoS registers and features the device has (QCAM).
    pub struct Qcam = "mlx5_ifc_qcam_reg_bits", 72 bytes {
        feature_group set_feature_group: u8 @ 0x8 +8;
        access_reg_group set_access_reg_group: u8 @ 0x18 +8;
        /// Bit `n` counted from the end: register `0x4000 + n`.
        registers set_registers: [u8; 16] @ 0x40 as "qos_access_reg_cap_mask";
        /// Feature bits, counted from the end.
        features set_features: [u8; 16] @ 0x140 as "qos_feature_cap_mask";
    }

    /// Default time-outs (DTOR).
    pub struct Dtor = "mlx5_ifc_dtor_reg_bits", 64 bytes {
        pcie_toggle_to set_pcie_toggle_to: Timeout @ 0x20;
        health_poll_to set_health_poll_to: Timeout @ 0xa0;
        full_crdump_to set_full_crdump_to: Timeout @ 0xc0;
        fw_reset_to set_fw_reset_to: Timeout @ 0xe0;
        flush_on_err_to set_flush_on_err_to: Timeout @ 0x100;
        pci_sync_update_to set_pci_sync_update_to: Timeout @ 0x120;
        tear_down_to set_tear_down_to: Timeout @ 0x140;
        fsm_reactivate_to set_fsm_reactivate_to: Timeout @ 0x160;
        reclaim_pages_to set_reclaim_pages_to: Timeout @ 0x180;
        reclaim_vfs_pages_to set_reclaim_vfs_pages_to: Timeout @ 0x1a0;
        reset_unload_to set_reset_unload_to: Timeout @ 0x1c0;
    }

    /// One time-out of [`Dtor`].
    pub struct Timeout = "mlx5_ifc_default_timeout_bits", 4 bytes {
        to_multiplier set_to_multiplier: u8 @ 0x0 +3;
        to_value set_to_value: u32 @ 0xc +20;
    }
}

/// `page_select` of [`Pddr`]: its page is the troubleshooting page.
pub const PDDR_TROUBLESHOOTING: u8 = 1;

open_enum! {
    /// Why a link is not up, as PDDR's monitor says it: those that a person can mend.
    pub struct LinkTroubleCode(u32) = "" {
        NONE = 0 from "kernel en_ethtool.c";
        /// Nobody answers at the other end.
        NO_PARTNER = 2 from "kernel en_ethtool.c";
        /// The other end reports a fault.
        REMOTE_FAULT = 14 from "kernel en_ethtool.c";
        BAD_SIGNAL = 15 from "kernel en_ethtool.c";
        /// The cable does not do what the port wants.
        UNSUITABLE_CABLE = 16 from "kernel en_ethtool.c";
        /// Nobody answers at the other end, whose speed is forced.
        NO_PARTNER_FORCED = 36 from "kernel en_ethtool.c";
        /// Neither end's error corrections go together.
        FEC_MISMATCH = 38 from "kernel en_ethtool.c";
        /// Neither end's speeds go together.
        NO_COMMON_SPEED = 39 from "kernel en_ethtool.c";
        /// No cable and no module.
        NO_CABLE = 1024 from "kernel en_ethtool.c";
        UNSUPPORTED_MODULE = 1025 from "kernel en_ethtool.c";
        /// The module's description cannot be read.
        UNREADABLE_MODULE = 1027 from "kernel en_ethtool.c";
        OVERHEATED_MODULE = 1030 from "kernel en_ethtool.c";
        MODULE_FAULT = 1031 from "kernel en_ethtool.c";
        /// The module wants more power than the slot gives.
        POWER_BUDGET = 1032 from "kernel en_ethtool.c";
    }

    /// Number of a register.
    pub struct RegisterId(u16) = "MLX5_REG_" {
        QPTS = 0x4002;
        QETCR = 0x4005;
        QTCT = 0x400a;
        QPDPM = 0x4013;
        QCAM = 0x4019;
        PCAP = 0x5001;
        PMLP = 0x5002;
        PMTU = 0x5003;
        PTYS = 0x5004;
        PAOS = 0x5006;
        PFCC = 0x5007;
        PPCNT = 0x5008;
        PUDE = 0x5009;
        PPTB = 0x500b;
        PBMC = 0x500c;
        PELC = 0x500e;
        PVLC = 0x500f;
        PMPE = 0x5010;
        PMAOS = 0x5012;
        PPLM = 0x5023;
        PDDR = 0x5031;
        PCMR = 0x5041;
        PCAM = 0x507f;
        NODE_DESC = 0x6001;
        HOST_ENDIANNESS = 0x7004;
        MTCAP = 0x9009;
        MTMP = 0x900a;
        MCIA = 0x9014;
        MFRL = 0x9028;
        MLCR = 0x902b;
        MRTC = 0x902d;
        MTRC_CAP = 0x9040;
        MTRC_CONF = 0x9041;
        MTRC_STDB = 0x9042;
        MTRC_CTRL = 0x9043;
        MPEIN = 0x9050;
        MPCNT = 0x9051;
        MTPPS = 0x9053;
        MTPPSE = 0x9054;
        MTUTC = 0x9055;
        MPEGC = 0x9056;
        MPIR = 0x9059;
        MCQS = 0x9060;
        MCQI = 0x9061;
        MCC = 0x9062;
        MCDA = 0x9063;
        MCAM = 0x907f;
        SBPR = 0xb001;
        SBCM = 0xb002;
        SBCAM = 0xb01f;
        DTOR = 0xc00e;
    }

    /// Direction of `ACCESS_REG` (`op_mod`).
    pub struct RegisterAccess(u16) = "MLX5_ACCESS_REGISTER_IN_OP_MOD_" {
        WRITE = 0x0;
        READ = 0x1;
    }

    /// Port status in PAOS.
    pub struct PortStatus(u8) = "MLX5_PORT_" {
        UP = 0x1;
        DOWN = 0x2;
    }

    /// Protocols of PTYS (`proto_mask`).
    pub struct PtysProtocol(u8) = "MLX5_PTYS_" {
        IB = 0x1;
        EN = 0x4;
    }

    /// State of automatic negotiation in PTYS (`an_status`).
    pub struct AutoNegotiation(u8) = "MLX5_AN_" {
        UNAVAILABLE = 0x0;
        COMPLETE = 0x1;
        FAILED = 0x2;
        LINK_UP = 0x3;
        LINK_DOWN = 0x4;
    }

    /// Bit number of a link mode in PTYS `eth_proto_*`.
    pub struct LinkMode(u8) = "MLX5E_" {
        SGMII_1000BASE_CX = 0 as "MLX5E_1000BASE_CX_SGMII";
        KX_1000BASE = 1 as "MLX5E_1000BASE_KX";
        CX4_10GBASE = 2 as "MLX5E_10GBASE_CX4";
        KX4_10GBASE = 3 as "MLX5E_10GBASE_KX4";
        KR_10GBASE = 4 as "MLX5E_10GBASE_KR";
        KR2_20GBASE = 5 as "MLX5E_20GBASE_KR2";
        CR4_40GBASE = 6 as "MLX5E_40GBASE_CR4";
        KR4_40GBASE = 7 as "MLX5E_40GBASE_KR4";
        R4_56GBASE = 8 as "MLX5E_56GBASE_R4";
        CR_10GBASE = 12 as "MLX5E_10GBASE_CR";
        SR_10GBASE = 13 as "MLX5E_10GBASE_SR";
        ER_10GBASE = 14 as "MLX5E_10GBASE_ER";
        SR4_40GBASE = 15 as "MLX5E_40GBASE_SR4";
        LR4_40GBASE = 16 as "MLX5E_40GBASE_LR4";
        SR2_50GBASE = 18 as "MLX5E_50GBASE_SR2";
        CR4_100GBASE = 20 as "MLX5E_100GBASE_CR4";
        SR4_100GBASE = 21 as "MLX5E_100GBASE_SR4";
        KR4_100GBASE = 22 as "MLX5E_100GBASE_KR4";
        LR4_100GBASE = 23 as "MLX5E_100GBASE_LR4";
        TX_100BASE = 24 as "MLX5E_100BASE_TX";
        T_1000BASE = 25 as "MLX5E_1000BASE_T";
        T_10GBASE = 26 as "MLX5E_10GBASE_T";
        CR_25GBASE = 27 as "MLX5E_25GBASE_CR";
        KR_25GBASE = 28 as "MLX5E_25GBASE_KR";
        SR_25GBASE = 29 as "MLX5E_25GBASE_SR";
        CR2_50GBASE = 30 as "MLX5E_50GBASE_CR2";
        KR2_50GBASE = 31 as "MLX5E_50GBASE_KR2";
    }

    /// Bit number of a link mode in PTYS `ext_eth_proto_*`.
    pub struct ExtLinkMode(u8) = "MLX5E_" {
        SGMII_100M = 0;
        SGMII_1000BASE_X = 1 as "MLX5E_1000BASE_X_SGMII";
        R_5GBASE = 3 as "MLX5E_5GBASE_R";
        XFI_10GBASE = 4 as "MLX5E_10GBASE_XFI_XAUI_1";
        XLAUI_40GBASE = 5 as "MLX5E_40GBASE_XLAUI_4_XLPPI_4";
        GAUI_1_25G = 6 as "MLX5E_25GAUI_1_25GBASE_CR_KR";
        GAUI_2_50G = 7 as "MLX5E_50GAUI_2_LAUI_2_50GBASE_CR2_KR2";
        GAUI_1_50G = 8 as "MLX5E_50GAUI_1_LAUI_1_50GBASE_CR_KR";
        CAUI_4_100G = 9 as "MLX5E_CAUI_4_100GBASE_CR4_KR4";
        GAUI_2_100G = 10 as "MLX5E_100GAUI_2_100GBASE_CR2_KR2";
        GAUI_1_100G = 11 as "MLX5E_100GAUI_1_100GBASE_CR_KR";
        GAUI_4_200G = 12 as "MLX5E_200GAUI_4_200GBASE_CR4_KR4";
        GAUI_2_200G = 13 as "MLX5E_200GAUI_2_200GBASE_CR2_KR2";
        GAUI_8_400G = 15 as "MLX5E_400GAUI_8_400GBASE_CR8";
        GAUI_4_400G = 16 as "MLX5E_400GAUI_4_400GBASE_CR4_KR4";
        GAUI_8_800G = 19 as "MLX5E_800GAUI_8_800GBASE_CR8_KR8";
    }
}

impl LinkMode {
    /// Its bit in `eth_proto_capability`, `_admin` and `_oper`.
    pub const fn bit(self) -> u32 {
        1 << (self.0 & 31)
    }

    /// Speed in Mbit/s; 0 for a mode without a name here.
    pub const fn mbps(self) -> u32 {
        match self {
            Self::TX_100BASE => 100,
            Self::SGMII_1000BASE_CX | Self::KX_1000BASE | Self::T_1000BASE => 1_000,
            Self::CX4_10GBASE
            | Self::KX4_10GBASE
            | Self::KR_10GBASE
            | Self::CR_10GBASE
            | Self::SR_10GBASE
            | Self::ER_10GBASE
            | Self::T_10GBASE => 10_000,
            Self::KR2_20GBASE => 20_000,
            Self::CR_25GBASE | Self::KR_25GBASE | Self::SR_25GBASE => 25_000,
            Self::CR4_40GBASE | Self::KR4_40GBASE | Self::SR4_40GBASE | Self::LR4_40GBASE => 40_000,
            Self::CR2_50GBASE | Self::KR2_50GBASE | Self::SR2_50GBASE => 50_000,
            Self::R4_56GBASE => 56_000,
            Self::CR4_100GBASE | Self::SR4_100GBASE | Self::KR4_100GBASE | Self::LR4_100GBASE => {
                100_000
            }
            _ => 0,
        }
    }
}

impl ExtLinkMode {
    /// Its bit in `ext_eth_proto_capability`, `_admin` and `_oper`.
    pub const fn bit(self) -> u32 {
        1 << (self.0 & 31)
    }

    /// Speed in Mbit/s; 0 for a mode without a name here.
    pub const fn mbps(self) -> u32 {
        match self {
            Self::SGMII_100M => 100,
            Self::SGMII_1000BASE_X => 1_000,
            Self::R_5GBASE => 5_000,
            Self::XFI_10GBASE => 10_000,
            Self::GAUI_1_25G => 25_000,
            Self::XLAUI_40GBASE => 40_000,
            Self::GAUI_2_50G | Self::GAUI_1_50G => 50_000,
            Self::CAUI_4_100G | Self::GAUI_2_100G | Self::GAUI_1_100G => 100_000,
            Self::GAUI_4_200G | Self::GAUI_2_200G => 200_000,
            Self::GAUI_8_400G | Self::GAUI_4_400G => 400_000,
            Self::GAUI_8_800G => 800_000,
            _ => 0,
        }
    }
}

/// Whether a PCAM, MCAM or QCAM mask names a register of its own group of 128.
pub const fn mask_names(mask: &[u8; 16], register: RegisterId) -> bool {
    let n = (register.0 & 0x7f) as usize;
    mask[15 - n / 8] >> (n % 8) & 1 == 1
}

/// A register: its number and its layout.
pub trait Register: Layout {
    /// The number.
    const ID: RegisterId;

    /// The input of `ACCESS_REG` that reads or writes this register.
    fn access(&self, direction: RegisterAccess) -> Vec<u8> {
        let mut head = <AccessReg as crate::Command>::request();
        head.set_register_id(Self::ID.0).set_op_mod(direction.0);
        [head.bytes(), self.as_bytes()].concat()
    }

    /// The register in the output of `ACCESS_REG`, or in its input; nothing if it is too short.
    fn from_access(bytes: &[u8]) -> Option<Self> {
        Some(
            Self::read_from_prefix(bytes.get(AccessRegIn::LEN..)?)
                .ok()?
                .0,
        )
    }
}

impl Register for Ptys {
    const ID: RegisterId = RegisterId::PTYS;
}

impl Register for Paos {
    const ID: RegisterId = RegisterId::PAOS;
}

impl Register for Pmtu {
    const ID: RegisterId = RegisterId::PMTU;
}

impl Register for Pddr {
    const ID: RegisterId = RegisterId::PDDR;
}

impl Register for Pmlp {
    const ID: RegisterId = RegisterId::PMLP;
}

impl Register for Pfcc {
    const ID: RegisterId = RegisterId::PFCC;
}

impl Register for Pcmr {
    const ID: RegisterId = RegisterId::PCMR;
}

impl Register for HostEndianness {
    const ID: RegisterId = RegisterId::HOST_ENDIANNESS;
}

impl Register for Pcam {
    const ID: RegisterId = RegisterId::PCAM;
}

impl Register for Mcam {
    const ID: RegisterId = RegisterId::MCAM;
}

impl Register for Qcam {
    const ID: RegisterId = RegisterId::QCAM;
}

impl Register for Dtor {
    const ID: RegisterId = RegisterId::DTOR;
}
