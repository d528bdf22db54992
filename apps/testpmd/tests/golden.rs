//! The output blocks, byte for byte: tools take them apart by titles, borders and the
//! position of words. The expected text is written here by hand from the format's facts.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use std::time::{Duration, Instant};

use pollux_testpmd::output::banner::{Banner, CoreLines, Retry, StreamLine};
use pollux_testpmd::output::device::{DeviceBlock, FunctionLine, MemoryLine, size_text};
use pollux_testpmd::output::forward::{BusyCycles, ForwardReport, PortStats, StreamStats};
use pollux_testpmd::output::gaps::CoreGaps;
use pollux_testpmd::output::nic::{Meter, NicBlock, NicStats, Rates};
use pollux_testpmd::output::port_info::{PortInfoBlock, RingLimits};
use pollux_testpmd::output::rxtx::{PortQueues, RxTx};
use pollux_testpmd::output::summary::{Summary, SummaryLine};
use pollux_testpmd::output::xstats::{QueueStats, XstatsBlock};
use pollux_testpmd::output::{Mac, speed_text};

fn port(port: u16, rx: u64, tx: u64) -> PortStats {
    PortStats {
        port,
        rx_packets: rx,
        tx_packets: tx,
        ..PortStats::default()
    }
}

#[test]
fn forward_statistics_of_two_ports() {
    let report = ForwardReport {
        streams: vec![StreamStats::default(); 2],
        ports: vec![port(0, 4711, 815), port(1, 815, 4711)],
        busy: None,
    };
    assert_eq!(
        report.to_string(),
        "
  ---------------------- Forward statistics for port 0  ----------------------
  RX-packets: 4711           RX-dropped: 0             RX-total: 4711
  TX-packets: 815            TX-dropped: 0             TX-total: 815
  ----------------------------------------------------------------------------

  ---------------------- Forward statistics for port 1  ----------------------
  RX-packets: 815            RX-dropped: 0             RX-total: 815
  TX-packets: 4711           TX-dropped: 0             TX-total: 4711
  ----------------------------------------------------------------------------

  +++++++++++++++ Accumulated forward statistics for all ports+++++++++++++++
  RX-packets: 5526           RX-dropped: 0             RX-total: 5526
  TX-packets: 5526           TX-dropped: 0             TX-total: 5526
  ++++++++++++++++++++++++++++++++++++++++++++++++++++++++++++++++++++++++++++
"
    );
}

#[test]
fn borders_have_the_length_that_tools_look_for() {
    let text = ForwardReport {
        ports: vec![port(0, 1, 1)],
        ..ForwardReport::default()
    }
    .to_string();
    assert!(text.lines().any(|l| l.trim() == "-".repeat(76)));
    assert!(text.lines().any(|l| l.trim() == "+".repeat(76)));
}

#[test]
fn errors_and_missing_buffers_appear_only_when_they_count() {
    let mut p = port(10, 1_000_000, 999_990);
    p.rx_missed = 7;
    p.tx_dropped = 10;
    let quiet = ForwardReport {
        ports: vec![p],
        ..ForwardReport::default()
    };
    assert!(!quiet.to_string().contains("RX-error"));
    assert!(!quiet.to_string().contains("nombuf"));
    p.rx_errors = 3;
    p.rx_nombuf = 5;
    let loud = ForwardReport {
        ports: vec![p],
        ..ForwardReport::default()
    };
    assert_eq!(
        loud.to_string(),
        "
  ---------------------- Forward statistics for port 10 ----------------------
  RX-packets: 1000000        RX-dropped: 7             RX-total: 1000007
  RX-error: 3
  RX-nombufs: 5             
  TX-packets: 999990         TX-dropped: 10            TX-total: 1000000
  ----------------------------------------------------------------------------

  +++++++++++++++ Accumulated forward statistics for all ports+++++++++++++++
  RX-packets: 1000000        RX-dropped: 7             RX-total: 1000007
  TX-packets: 999990         TX-dropped: 10            TX-total: 1000000
  RX-nombufs: 5             
  ++++++++++++++++++++++++++++++++++++++++++++++++++++++++++++++++++++++++++++
"
    );
}

#[test]
fn streams_are_shown_when_there_are_more_of_them_than_ports() {
    let stream = |queue, rx_packets| StreamStats {
        rx: (0, queue),
        tx: (1, queue),
        rx_packets,
        tx_packets: rx_packets,
        dropped: 0,
    };
    let report = ForwardReport {
        streams: vec![stream(0, 12), stream(1, 0), stream(2, 34)],
        ports: vec![port(0, 46, 0), port(1, 0, 46)],
        busy: None,
    };
    let text = report.to_string();
    assert!(text.starts_with(
        "
  ------- Forward Stats for RX Port= 0/Queue= 0 -> TX Port= 1/Queue= 0 -------
  RX-packets: 12             TX-packets: 12             TX-dropped: 0             

  ------- Forward Stats for RX Port= 0/Queue= 2 -> TX Port= 1/Queue= 2 -------
  RX-packets: 34             TX-packets: 34             TX-dropped: 0             

  ---------------------- Forward statistics for port 0  ----------------------
"
    ));
}

/// A mode that only sends has no received packets to divide by.
#[test]
fn cycles_per_packet_count_sent_packets_in_a_sending_mode() {
    let mut report = ForwardReport {
        ports: vec![port(0, 0, 200), port(1, 0, 50)],
        busy: Some(BusyCycles {
            cycles: 5000,
            mode: "txonly",
            sends_only: true,
            mhz: 2400,
        }),
        ..ForwardReport::default()
    };
    assert!(report.to_string().ends_with(
        "\n  CPU cycles/packet=20.00 (busy cycles=5000 / total txonly packets=250) at 2400 MHz Clock\n"
    ));
    // Nothing sent, nothing to divide: no line, no division by zero.
    report.ports = vec![port(0, 3, 0)];
    assert!(!report.to_string().contains("CPU cycles"));
}

#[test]
fn nic_statistics() {
    let block = NicBlock {
        port: 0,
        stats: NicStats {
            rx_packets: 276_276_512,
            rx_missed: 1,
            rx_bytes: 17_681_696_768,
            rx_errors: 2,
            rx_nombuf: 3,
            tx_packets: 4,
            tx_errors: 5,
            tx_bytes: 256,
        },
        rates: Rates {
            rx_pps: 180_304_957,
            rx_bps: 92_316_137_984,
            tx_pps: 0,
            tx_bps: 0,
        },
    };
    assert_eq!(
        block.to_string(),
        "
  ######################## NIC statistics for port 0  ########################
  RX-packets: 276276512  RX-missed: 1          RX-bytes:  17681696768
  RX-errors: 2
  RX-nombuf:  3         
  TX-packets: 4          TX-errors: 5          TX-bytes:  256

  Throughput (since last show)
  Rx-pps:    180304957          Rx-bps:  92316137984
  Tx-pps:            0          Tx-bps:            0
  ############################################################################
"
    );
}

#[test]
fn rates_are_those_since_the_last_look() {
    let mut meter = Meter::default();
    let t = Instant::now();
    let stats = |rx_packets, rx_bytes| NicStats {
        rx_packets,
        rx_bytes,
        ..NicStats::default()
    };
    assert_eq!(meter.look(&stats(500, 64_000), t), Rates::default());
    let rates = meter.look(&stats(1500, 192_000), t + Duration::from_secs(2));
    assert_eq!((rates.rx_pps, rates.rx_bps), (500, 512_000));
    // Cleared in between: the counter is smaller than before.
    let rates = meter.look(&stats(10, 640), t + Duration::from_secs(3));
    assert_eq!((rates.rx_pps, rates.rx_bps), (0, 0));
}

#[test]
fn xstats() {
    let block = XstatsBlock {
        port: 1,
        stats: NicStats {
            rx_packets: 10,
            rx_bytes: 640,
            tx_packets: 9,
            tx_bytes: 576,
            rx_missed: 1,
            ..NicStats::default()
        },
        rx: vec![QueueStats {
            packets: 10,
            bytes: 640,
            errors: 0,
        }],
        tx: vec![QueueStats {
            packets: 9,
            bytes: 576,
            errors: 0,
        }],
    };
    assert_eq!(
        block.to_string(),
        "###### NIC extended statistics for port 1 
rx_good_packets: 10
tx_good_packets: 9
rx_good_bytes: 640
tx_good_bytes: 576
rx_missed_errors: 1
rx_errors: 0
tx_errors: 0
rx_mbuf_allocation_errors: 0
rx_q0_packets: 10
rx_q0_bytes: 640
rx_q0_errors: 0
tx_q0_packets: 9
tx_q0_bytes: 576
"
    );
}

#[test]
fn start_banner() {
    let line = |rx, tx, last| StreamLine {
        rx: (rx, 0),
        rx_socket: 0,
        tx: (tx, 0),
        tx_socket: 0,
        peer: Mac([2, 0, 0, 0, 0, last]),
    };
    let mut banner = Banner {
        mode: "io",
        retry: None,
        ports: 2,
        cores: vec![CoreLines {
            cpu: 1,
            socket: 0,
            yields: false,
            streams: vec![line(0, 1, 1), line(1, 0, 0)],
        }],
    };
    assert_eq!(
        banner.to_string(),
        "io packet forwarding - ports=2 - cores=1 - streams=2 - NUMA support enabled, MP allocation mode: native
Logical Core 1 (socket 0) forwards packets on 2 streams:
  RX P=0/Q=0 (socket 0) -> TX P=1/Q=0 (socket 0) peer=02:00:00:00:00:01
  RX P=1/Q=0 (socket 0) -> TX P=0/Q=0 (socket 0) peer=02:00:00:00:00:00

"
    );
    banner.retry = Some(Retry {
        count: 64,
        delay_us: 1,
    });
    assert!(banner.to_string().starts_with(
        "io packet forwarding with retry - ports=2 - cores=1 - streams=2 - NUMA support enabled, MP allocation mode: native
TX retry num: 64, delay between TX retries: 1us
Logical Core 1 (socket 0)"
    ));
}

#[test]
fn a_core_that_shares_its_cpu_says_so() {
    let banner = |yields| {
        Banner {
            mode: "io",
            retry: None,
            ports: 1,
            cores: vec![CoreLines {
                cpu: 0,
                socket: 0,
                yields,
                streams: vec![],
            }],
        }
        .to_string()
    };
    assert!(banner(true).contains("Logical Core 0 shares its CPU with the emulator"));
    assert!(!banner(false).contains("shares"));
}

#[test]
fn queues_and_bursts() {
    let block = RxTx {
        mode: "txonly",
        retry: false,
        burst: 32,
        packet_length: Some(64),
        cores: 1,
        forwarding_ports: 1,
        ports: vec![PortQueues {
            port: 0,
            rx_queues: 2,
            tx_queues: 2,
            rx_descriptors: 1024,
            tx_descriptors: 512,
        }],
    };
    assert_eq!(
        block.to_string(),
        "  txonly packet forwarding packets/burst=32
  packet len=64 - nb packet segments=1
  nb forwarding cores=1 - nb forwarding ports=1
  port 0: RX queue number: 2 Tx queue number: 2
    Rx offloads=0x0 Tx offloads=0x0
    RX queue: 0
      RX desc=1024 - RX free threshold=0
      RX threshold registers: pthresh=0 hthresh=0  wthresh=0
      RX Offloads=0x0
    TX queue: 0
      TX desc=512 - TX free threshold=0
      TX threshold registers: pthresh=0 hthresh=0  wthresh=0
      TX offloads=0x0 - TX RS bit threshold=0
"
    );
}

#[test]
fn summary() {
    let block = Summary {
        available: 2,
        ports: vec![SummaryLine {
            port: 0,
            mac: Mac([0x7a, 0xa2, 0x16, 0x44, 0x5b, 0xd6]),
            name: "emu0".into(),
            driver: "mlx5_pollux".into(),
            link_up: Some(true),
            speed_mbps: Some(25_000),
        }],
    };
    assert_eq!(
        block.to_string(),
        "Number of available ports: 2
Port MAC Address       Name         Driver         Status   Link
0    7A:A2:16:44:5B:D6 emu0         mlx5_pollux    up       25 Gbps
"
    );
}

#[test]
fn port_info() {
    let block = PortInfoBlock {
        port: 0,
        mac: Mac([0x7a, 0xa2, 0x16, 0x44, 0x5b, 0xd6]),
        name: "emu0".into(),
        driver: "mlx5_pollux".into(),
        firmware: Some("22.36.1010".into()),
        devargs: "emu:ports=2,wire=pair".into(),
        socket: 0,
        memory_socket: 0,
        link_up: Some(true),
        speed_mbps: Some(100_000),
        full_duplex: true,
        autoneg: true,
        mtu: 1500,
        min_mtu: 68,
        max_mtu: 9978,
        promiscuous: true,
        all_multicast: false,
        max_mac_addresses: 1,
        hash_key_size: 40,
        reta_size: 128,
        rss_types: vec![
            "ipv4",
            "ipv4-frag",
            "ipv4-tcp",
            "ipv4-udp",
            "ipv4-sctp",
            "ipv4-other",
            "ipv6",
            "ipv6-frag",
        ],
        min_rx_buffer: 64,
        max_rx_frame: 9996,
        rx: RingLimits {
            queues: 1,
            max_queues: 16,
            max_descriptors: 8192,
            min_descriptors: 64,
            alignment: 1,
        },
        tx: RingLimits {
            queues: 2,
            max_queues: 32,
            max_descriptors: 4096,
            min_descriptors: 32,
            alignment: 1,
        },
        max_tx_segments: 1,
        private_info: "EMULATED ConnectX-6 Dx".into(),
    };
    assert_eq!(
        block.to_string(),
        "
********************* Infos for port 0  *********************
MAC address: 7A:A2:16:44:5B:D6
Device name: emu0
Driver name: mlx5_pollux
Firmware-version: 22.36.1010
Devargs: emu:ports=2,wire=pair
Connect to socket: 0
memory allocation on the socket: 0
Link status: up
Link speed: 100 Gbps
Link duplex: full-duplex
Autoneg status: On
MTU: 1500
Minimum MTU: 68
Maximum MTU: 9978
Promiscuous mode: enabled
Allmulticast mode: disabled
Maximum number of MAC addresses: 1
Maximum number of MAC addresses of hash filtering: 0
VLAN offload: 
  strip off, filter off, extend off, qinq strip off
Hash key size in bytes: 40
Redirection table size: 128
Supported RSS offload flow types:
  ipv4  ipv4-frag  ipv4-tcp  ipv4-udp  ipv4-sctp  ipv4-other
  ipv6  ipv6-frag
Minimum size of RX buffer: 64
Maximum configurable length of RX packet: 9996
Maximum configurable size of LRO aggregated packet: 0
Current number of RX queues: 1
Max possible RX queues: 16
Max possible number of RXDs per queue: 8192
Min possible number of RXDs per queue: 64
RXDs number alignment: 1
Current number of TX queues: 2
Max possible TX queues: 32
Max possible number of TXDs per queue: 4096
Min possible number of TXDs per queue: 32
TXDs number alignment: 1
Max segment number per packet: 1
Max segment number per MTU/TSO: 1
Device capabilities: 0x0( )
Device error handling mode: none
Device private info:
  EMULATED ConnectX-6 Dx
"
    );
    let mut bare = block;
    bare.hash_key_size = 0;
    bare.reta_size = 0;
    bare.rss_types.clear();
    bare.firmware = None;
    let text = bare.to_string();
    assert!(text.contains("\n  strip off, filter off, extend off, qinq strip off\nNo RSS offload flow type is supported.\nMinimum size of RX buffer"));
    assert!(text.contains("Firmware-version: not available\n"));
    // One empty line before the block, none inside.
    assert!(!text.get(1..).unwrap().contains("\n\n"));
}

#[test]
fn device_block_says_emulated_and_where_memory_is() {
    let block = DeviceBlock {
        device: "emu:ports=2".into(),
        memory: vec![MemoryLine {
            pool: "mb_pool_0".into(),
            mbufs: 8192,
            mbuf_size: 2176,
            bytes: 20 << 20,
            page: 2 << 20,
            node: 0,
        }],
        functions: vec![FunctionLine {
            port: 0,
            model: "ConnectX-6 Dx".into(),
            firmware: "22.36.1010".into(),
            mac: Mac([2, 0, 0, 0, 0, 1]),
            emulated: true,
            node: 0,
        }],
    };
    assert_eq!(
        block.to_string(),
        "memory: pool mb_pool_0: 8192 mbufs of 2176 bytes, 20 MiB on 2 MiB pages, NUMA node 0
device: EMULATED emu:ports=2 with 1 function
  port 0: EMULATED ConnectX-6 Dx, firmware 22.36.1010, MAC 02:00:00:00:00:01, NUMA node 0
"
    );
    assert_eq!(size_text(4096), "4 KiB");
    assert_eq!(size_text(1 << 30), "1 GiB");
    assert_eq!(size_text(4097), "4097 bytes");
}

#[test]
fn gaps() {
    let gaps = CoreGaps {
        cpu: 1,
        count: 12345,
        p50: Duration::from_nanos(120),
        p99: Duration::from_nanos(900),
        p999: Duration::from_nanos(12_300),
        longest: Duration::from_micros(15_250),
        lost_ppm: 431,
        long_gaps: 17,
        observed: Duration::from_millis(2500),
        yields: false,
    };
    assert_eq!(
        gaps.to_string(),
        "poll gaps on core 1: p50 120 ns, p99 900 ns, p99.9 12.3 us, longest 15.2 ms; 17 gaps above 10 us took 431 ppm of 2.500 s (12345 polls)\n"
    );
}

#[test]
fn speeds() {
    for (mbps, text) in [
        (None, "Unknown"),
        (Some(0), "None"),
        (Some(100), "100 Mbps"),
        (Some(1000), "1 Gbps"),
        (Some(2500), "2.5 Gbps"),
        (Some(400_000), "400 Gbps"),
    ] {
        assert_eq!(speed_text(mbps), text);
    }
}
