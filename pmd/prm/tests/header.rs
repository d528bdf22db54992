//! Every field, size and named number against the kernel's and rdma-core's C headers.
//!
//! A C program made from the tables prints what the compiler says; the test compares. Without
//! the headers or a C compiler the test says so in one line and passes, unless
//! `POLLUX_REQUIRE_HEADERS` is set.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test states what it expects by failing"
)]

#[path = "header/probe.rs"]
mod probe;

use std::collections::BTreeMap;

use pollux_prm::layout::{Shape, Source};
use pollux_prm::{catalog, command_queue, commands};
use probe::{Headers, Probe, Program};

/// Layouts that describe only the start of their C structure.
const PREFIXES: &[&str] = &["InitSegment", "OutputHeader"];

/// Fields that only headers name which no package installs.
const NOT_INSTALLED: &[&str] = &[
    "CmdHcaCap.dc_connect_qp",
    "CmdHcaCap.dc_cnak_trace",
    "CmdHcaCap.exponential_backoff",
    "EthernetOffloadCaps.self_lb_mc",
    "EthernetOffloadCaps.self_lb_uc",
    "FlowTableProps.flow_tag",
];

/// Fields that headers before Linux 6.12 have in another place or narrower; the later ones count.
const MOVED: &[&str] = &[
    "CmdHcaCap.shampo",
    "CmdHcaCap.relaxed_ordering_read",
    "Ppcnt.prio_tc",
    "Mkc.log_page_size",
];

/// The C field that each command's tail is: stem, whether it is the output's, designator.
const TAILS: &[(&str, bool, &str)] = &[
    ("manage_pages", false, "pas[0]"),
    ("manage_pages", true, "pas[0]"),
    ("create_eq", false, "pas[0]"),
    ("query_eq", true, "pas[0]"),
    ("create_mkey", false, "klm_pas_mtt[0]"),
    ("create_cq", false, "pas[0]"),
    ("modify_cq", false, "pas[0]"),
    ("query_cq", true, "pas[0]"),
    ("create_sq", false, "ctx.wq.pas[0]"),
    ("modify_sq", false, "ctx.wq.pas[0]"),
    ("query_sq", true, "sq_context.wq.pas[0]"),
    ("create_rq", false, "ctx.wq.pas[0]"),
    ("modify_rq", false, "ctx.wq.pas[0]"),
    ("query_rq", true, "rq_context.wq.pas[0]"),
    ("create_rqt", false, "rqt_context.rq_num[0]"),
    ("modify_rqt", false, "ctx.rq_num[0]"),
    ("query_rqt", true, "rqt_context.rq_num[0]"),
    (
        "query_nic_vport_context",
        true,
        "nic_vport_context.current_uc_mac_address[0]",
    ),
    (
        "modify_nic_vport_context",
        false,
        "nic_vport_context.current_uc_mac_address[0]",
    ),
    ("query_flow_counter", true, "flow_statistics[0]"),
    (
        "set_fte",
        false,
        "flow_context.destination[0].extended_dest_format.destination_entry",
    ),
    (
        "query_fte",
        true,
        "flow_context.destination[0].extended_dest_format.destination_entry",
    ),
    ("access_register", false, "register_data[0]"),
    ("access_register", true, "register_data[0]"),
];

/// Fields that rdma-core describes too: layout, field, C structure, C field.
const SECOND_OPINION: &[(&str, &str, &str, &str)] = &[
    ("Cqe", "wqe_id", "mlx5_cqe64", "wqe_id"),
    ("Cqe", "ml_path", "mlx5_cqe64", "ml_path"),
    ("Cqe", "slid", "mlx5_cqe64", "slid"),
    ("Cqe", "flags_rqpn", "mlx5_cqe64", "flags_rqpn"),
    ("Cqe", "vlan_info", "mlx5_cqe64", "vlan_info"),
    ("Cqe", "flow_table_metadata", "mlx5_cqe64", "imm_inval_pkey"),
    ("Cqe", "byte_cnt", "mlx5_cqe64", "byte_cnt"),
    ("Cqe", "timestamp", "mlx5_cqe64", "timestamp"),
    ("Cqe", "sop_drop_qpn", "mlx5_cqe64", "sop_drop_qpn"),
    ("Cqe", "wqe_counter", "mlx5_cqe64", "wqe_counter"),
    ("Cqe", "signature", "mlx5_cqe64", "signature"),
    (
        "ErrorCqe",
        "vendor_err_synd",
        "mlx5_err_cqe",
        "vendor_err_synd",
    ),
    ("ErrorCqe", "syndrome", "mlx5_err_cqe", "syndrome"),
    ("ErrorCqe", "wqe_counter", "mlx5_err_cqe", "wqe_counter"),
    ("CtrlSeg", "signature", "mlx5_wqe_ctrl_seg", "signature"),
    ("CtrlSeg", "immediate", "mlx5_wqe_ctrl_seg", "imm"),
    ("EthSeg", "mss", "mlx5_wqe_eth_seg", "mss"),
    (
        "EthSeg",
        "inline_hdr_sz",
        "mlx5_wqe_eth_seg",
        "inline_hdr_sz",
    ),
    (
        "EthSeg",
        "inline_hdr_start",
        "mlx5_wqe_eth_seg",
        "inline_hdr_start",
    ),
    ("DataSeg", "byte_count", "mlx5_wqe_data_seg", "byte_count"),
    ("DataSeg", "lkey", "mlx5_wqe_data_seg", "lkey"),
    ("DataSeg", "addr", "mlx5_wqe_data_seg", "addr"),
];

/// C constants that are the mask of one field within its C field.
const MASKS: &[(&str, &str, &str)] = &[
    ("Cqe", "l2_ok", "CQE_L2_OK"),
    ("Cqe", "l3_ok", "CQE_L3_OK"),
    ("Cqe", "l4_ok", "CQE_L4_OK"),
    ("Cqe", "rss_hash_l3", "CQE_RSS_HTYPE_IP"),
    ("Cqe", "rss_hash_l4", "CQE_RSS_HTYPE_L4"),
    ("Cqe", "owner", "MLX5_CQE_OWNER_MASK"),
    ("CtrlSeg", "opcode", "MLX5_WQE_CTRL_OPCODE_MASK"),
    ("CtrlSeg", "wqe_index", "MLX5_WQE_CTRL_WQE_INDEX_MASK"),
    ("CtrlSeg", "qpn", "MLX5_WQE_CTRL_QPN_MASK"),
    ("CtrlSeg", "ds", "MLX5_WQE_CTRL_DS_MASK"),
    ("CtrlSeg", "completion", "MLX5_WQE_CTRL_CQ_UPDATE_AND_EQE"),
    ("CtrlSeg", "solicited", "MLX5_WQE_CTRL_SOLICITED"),
    ("EthSeg", "l4_csum", "MLX5_ETH_WQE_L4_CSUM"),
    ("EthSeg", "l3_csum", "MLX5_ETH_WQE_L3_CSUM"),
    ("EthSeg", "l4_inner_csum", "MLX5_ETH_WQE_L4_INNER_CSUM"),
    ("EthSeg", "l3_inner_csum", "MLX5_ETH_WQE_L3_INNER_CSUM"),
    ("EthSeg", "insert_vlan", "MLX5_ETH_WQE_INSERT_VLAN"),
    ("EthSeg", "insert_svlan", "MLX5_ETH_WQE_SVLAN"),
    ("InlineSeg", "inline", "MLX5_INLINE_SEG"),
    (
        "InlineSeg",
        "byte_count",
        "MLX5_WQE_INLINE_SEG_BYTE_COUNT_MASK",
    ),
];

/// C functions that read one field of a completion entry: field, function, its C field.
const READERS: &[(&str, &str, &str)] = &[
    ("opcode", "get_cqe_opcode", "op_own"),
    ("format", "mlx5_get_cqe_format", "op_own"),
    ("l4_hdr_type", "get_cqe_l4_hdr_type", "l4_l3_hdr_type"),
    (
        "lro_tcppsh",
        "get_cqe_lro_tcppsh",
        "lro.tcppsh_abort_dupack",
    ),
    ("vlan_stripped", "cqe_has_vlan", "l4_l3_hdr_type"),
    ("tunneled", "cqe_is_tunneled", "tls_outer_l3_tunneled"),
];

/// A field's bits within the C field around it, counted as C counts them.
fn mask_within(shape: &Shape, name: &str, around: (usize, usize)) -> u64 {
    let field = shape
        .fields
        .iter()
        .find(|f| f.name == name)
        .expect("a field");
    let ones = (1_u64 << field.bits) - 1;
    ones << (around.0 + around.1 - field.bit_offset - field.bits)
}

fn headers() -> Option<Headers> {
    match Headers::find() {
        Ok(headers) => Some(headers),
        Err(missing) => {
            assert!(
                std::env::var_os("POLLUX_REQUIRE_HEADERS").is_none(),
                "POLLUX_REQUIRE_HEADERS is set, but {missing}"
            );
            eprintln!("SKIPPED: layouts are NOT compared with the C headers: {missing}");
            None
        }
    }
}

/// `mlx5_struct.field` in the text of a field that the layout's own structure lacks.
fn elsewhere(place: &str) -> Option<(&str, &str)> {
    let (tag, field) = place.split_once('.')?;
    let is_c = |s: &str| s.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    (is_c(tag) && is_c(&field.replace('.', ""))).then_some((tag, field))
}

#[test]
fn fields_stand_where_the_headers_have_them() {
    let Some(headers) = headers() else { return };
    let mut program = Program::new(&headers);
    let mut checks: Vec<(&Shape, usize, Vec<Probe>)> = Vec::new();
    let mut unnamed = Vec::new();
    for shape in catalog::layouts() {
        for (index, field) in shape.fields.iter().enumerate() {
            let at = |tag, designator| program_field(&headers, tag, designator);
            let probes = match field.source {
                Source::Exact(name) | Source::Part(name) => vec![at(shape.header, name)],
                Source::Span(first, last) => vec![at(shape.header, first), at(shape.header, last)],
                Source::Elsewhere(place) => match elsewhere(place) {
                    Some((tag, name)) => vec![at(tag, name)],
                    None => {
                        unnamed.push(format!("{}.{}", shape.name, field.name));
                        continue;
                    }
                },
            };
            checks.push((shape, index, probes));
        }
    }
    assert_eq!(unnamed, NOT_INSTALLED);
    for (_, _, probes) in &checks {
        for probe in probes {
            program.ask(probe);
        }
    }
    let answers = program.run();
    let mut wrong = Vec::new();
    checks.retain(|(.., probes)| probes.iter().all(|probe| answers.contains_key(probe)));
    for (shape, index, probes) in &checks {
        let field = &shape.fields[*index];
        let (start, end) = (field.bit_offset, field.bit_offset + field.bits);
        let spans: Vec<(usize, usize)> = probes
            .iter()
            .map(|p| (answers[p].0, answers[p].0 + answers[p].1))
            .collect();
        let (first, last) = (spans[0], spans[spans.len() - 1]);
        let right = match field.source {
            Source::Exact(_) | Source::Span(..) => start == first.0 && end == last.1,
            Source::Part(_) | Source::Elsewhere(_) => start >= first.0 && end <= first.1,
        };
        let name = format!("{}.{}", shape.name, field.name);
        let moved = headers.are_old() && MOVED.contains(&name.as_str());
        if !right && !moved {
            wrong.push(format!(
                "{name} is bits {start}..{end}, the header has {}..{} ({:?})",
                first.0, last.1, field.source
            ));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} fields are wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert!(
        checks.len() > 1000,
        "only {} fields were compared",
        checks.len()
    );
    println!("{} fields compared", checks.len());
}

fn program_field(headers: &Headers, tag: &str, designator: &str) -> Probe {
    Probe::field(headers, tag, designator)
}

#[test]
fn sizes_are_those_of_the_headers() {
    let Some(headers) = headers() else { return };
    let mut program = Program::new(&headers);
    let shapes: Vec<&Shape> = catalog::layouts()
        .filter(|s| !s.header.is_empty())
        .collect();
    for shape in &shapes {
        program.ask(&Probe::size(&headers, shape.header));
    }
    let answers = program.run();
    let mut wrong = Vec::new();
    for shape in shapes {
        let Some((_, bits)) = answers.get(&Probe::size(&headers, shape.header)) else {
            continue; // newer than the headers
        };
        let bytes = bits / 8;
        let prefix = PREFIXES.contains(&shape.name);
        if (prefix && bytes <= shape.len) || (!prefix && bytes != shape.len) {
            wrong.push(format!(
                "{} has {} bytes, the header {bytes}",
                shape.name, shape.len
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn commands_have_the_headers_lengths_and_tails() {
    let Some(headers) = headers() else { return };
    let mut program = Program::new(&headers);
    let all: Vec<_> = commands::ALL.iter().copied().flatten().collect();
    let tag =
        |stem: &str, out: bool| format!("mlx5_ifc_{stem}_{}_bits", if out { "out" } else { "in" });
    for command in &all {
        for out in [false, true] {
            if headers.has(&tag(command.stem, out)) {
                program.ask(&Probe::size(&headers, &tag(command.stem, out)));
            }
        }
    }
    for (stem, out, designator) in TAILS {
        program.ask(&Probe::field(&headers, &tag(stem, *out), designator));
    }
    let answers = program.run();
    for command in &all {
        let sides = [
            (false, command.input.len, command.input_element),
            (true, command.output.len, command.output_element),
        ];
        for (out, len, element) in sides {
            // The header has no output of GEN_EQE.
            if headers.has(&tag(command.stem, out)) {
                let size = answers[&Probe::size(&headers, &tag(command.stem, out))].1 / 8;
                assert_eq!(
                    size,
                    len,
                    "{} {}",
                    command.opcode,
                    if out { "output" } else { "input" }
                );
            } else {
                assert_eq!((command.stem, out), ("gen_eqe", true));
            }
            let row = TAILS
                .iter()
                .find(|(stem, o, _)| *stem == command.stem && *o == out);
            match row {
                None => assert_eq!(element, 0, "{}: the tail has no row here", command.opcode),
                Some((stem, _, designator)) => {
                    let (offset, bits) =
                        answers[&Probe::field(&headers, &tag(stem, out), designator)];
                    assert_eq!((offset / 8, bits / 8), (len, element), "{}", command.opcode);
                }
            }
        }
    }
}

#[test]
fn numbers_are_those_of_the_headers() {
    let Some(headers) = headers() else { return };
    let mut program = Program::new(&headers);
    let mut checks = Vec::new();
    for (name, values) in catalog::enumerations() {
        for value in *values {
            if let Source::Exact(constant) = value.source {
                let probe = Probe::constant(&headers, constant);
                program.ask(&probe);
                checks.push((format!("{name}::{}", value.name), value.value, probe));
            }
        }
    }
    let lone = [
        ("INVALID_LKEY", 0x100, "MLX5_INVALID_LKEY"),
        ("BASIC_BLOCK", 64, "MLX5_SEND_WQE_BB"),
        ("record::RECEIVE", 0, "MLX5_RCV_DBR"),
        ("record::SEND", 1, "MLX5_SND_DBR"),
        ("uar::CQ_ARM", 0x20, "MLX5_CQ_DOORBELL"),
        ("uar::SEND", 0x800, "MLX5_BF_OFFSET"),
        ("ENTRY_TYPE", 7, "MLX5_PCI_CMD_XPORT"),
        ("MAILBOX_DATA", 512, "MLX5_CMD_DATA_BLOCK_SIZE"),
    ];
    for (name, value, constant) in lone {
        let probe = Probe::constant(&headers, constant);
        program.ask(&probe);
        checks.push((name.to_string(), value, probe));
    }
    let answers = program.run();
    checks.retain(|(.., probe)| answers.contains_key(probe));
    for (name, value, probe) in &checks {
        assert_eq!(*value, answers[probe].0 as u64, "{name}");
    }
    assert!(
        checks.len() > 400,
        "only {} numbers were compared",
        checks.len()
    );
    println!("{} numbers compared", checks.len());
}

#[test]
fn registers_stand_where_the_header_has_them() {
    let Some(headers) = headers() else { return };
    let mut program = Program::new(&headers);
    for (name, _) in command_queue::registers::ALL {
        program.ask(&Probe::field(&headers, "mlx5_init_seg", name));
    }
    program.ask(&Probe::size(&headers, "mlx5_init_seg"));
    let answers = program.run();
    for (name, offset) in command_queue::registers::ALL {
        let bits = answers[&Probe::field(&headers, "mlx5_init_seg", name)].0;
        assert_eq!(bits / 8, *offset, "{name}");
    }
    let size = answers[&Probe::size(&headers, "mlx5_init_seg")].1 / 8;
    assert_eq!(size, command_queue::registers::END);
}

#[test]
fn rdma_core_agrees_where_it_describes_the_same() {
    let Some(headers) = headers() else { return };
    let shapes: BTreeMap<&str, &Shape> = catalog::layouts().map(|s| (s.name, s)).collect();
    let mut program = Program::new(&headers);
    let probes: Vec<Probe> = SECOND_OPINION
        .iter()
        .map(|(_, _, tag, name)| Probe::rdma_field(tag, name))
        .collect();
    for probe in &probes {
        program.ask(probe);
    }
    let answers = program.run();
    for ((layout, name, ..), probe) in SECOND_OPINION.iter().zip(&probes) {
        let field = shapes[layout]
            .fields
            .iter()
            .find(|f| f.name == *name)
            .expect("a field");
        assert_eq!(
            (field.bit_offset, field.bits),
            answers[probe],
            "{layout}.{name}"
        );
    }
}

#[test]
fn parts_of_fields_have_the_headers_masks() {
    let Some(headers) = headers() else { return };
    let shapes: BTreeMap<&str, &Shape> = catalog::layouts().map(|s| (s.name, s)).collect();
    let around = |layout: &str, name: &str| {
        let field = shapes[layout]
            .fields
            .iter()
            .find(|f| f.name == name)
            .expect("a field");
        match field.source {
            Source::Part(c_field) => Probe::field(&headers, shapes[layout].header, c_field),
            source => panic!("{layout}.{name} is no part: {source:?}"),
        }
    };
    let mut program = Program::new(&headers);
    for (layout, name, constant) in MASKS {
        program.ask(&around(layout, name));
        program.ask(&Probe::constant(&headers, constant));
    }
    for (name, ..) in READERS {
        program.ask(&around("Cqe", name));
    }
    let answers = program.run();
    for (layout, name, constant) in MASKS {
        let mask = mask_within(shapes[layout], name, answers[&around(layout, name)]);
        assert_eq!(
            mask,
            answers[&Probe::constant(&headers, constant)].0 as u64,
            "{constant}"
        );
    }

    // A reader sees all ones where our field is all ones, and nothing of the other bits.
    let mut program = Program::new(&headers);
    let mut checks = Vec::new();
    for (name, function, c_field) in READERS {
        let mask = mask_within(shapes["Cqe"], name, answers[&around("Cqe", name)]);
        let bits = shapes["Cqe"]
            .fields
            .iter()
            .find(|f| f.name == *name)
            .expect("a field")
            .bits;
        for (byte, expected) in [(mask, (1 << bits) - 1), (!mask & 0xff, 0)] {
            let call = format!("{function}(&(struct mlx5_cqe64){{ .{c_field} = {byte} }})");
            let probe = Probe::expression(&call);
            program.ask(&probe);
            checks.push((*name, probe, expected));
        }
    }
    let answers = program.run();
    for (name, probe, expected) in checks {
        assert_eq!(answers[&probe].0, expected, "{name}: {probe:?}");
    }
}
