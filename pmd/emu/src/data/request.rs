//! What the command side asks of the data thread, as plain structs.
//!
//! Everything here is made by the emulator's command side out of decoded commands: numbers of
//! objects, ring layouts, page lists. The data thread checks what only it can check (addresses,
//! references between queues) and answers each request before it touches another packet. Nothing
//! here is a wire format.

use pollux_bus::Iova;

/// Memory of a ring as CREATE_CQ, CREATE_SQ and CREATE_RQ give it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingMemory {
    /// Device addresses of the pages, in order.
    pub pages: Vec<u64>,
    /// Logarithm of the page size in bytes (12 and up).
    pub log_page_size: u32,
    /// Where the ring starts in the first page, in bytes.
    pub offset: u32,
}

/// State of a send or receive queue (SQC.state, RQC.state).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueState {
    /// Takes no work; indices are zero.
    Reset,
    /// Works.
    Ready,
    /// Failed, or told to: work is flushed or left alone.
    Error,
}

/// How much of each packet's header must stand inline in its WQE
/// (SQC.min_wqe_inline_mode or the vport's).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InlineMode {
    /// Nothing.
    None,
    /// The Ethernet header, VLAN tag included.
    L2,
    /// Up to the end of the IP header.
    Ip,
    /// Up to the end of the TCP or UDP header.
    TcpUdp,
}

/// A completion queue.
#[derive(Clone, Debug)]
pub struct CqSpec {
    /// Its number.
    pub cqn: u32,
    /// Where the ring lies.
    pub ring: RingMemory,
    /// Logarithm of its entries.
    pub log_size: u32,
    /// Logarithm of an entry's size in bytes: 6 or 7.
    pub log_entry: u32,
    /// Device address of the doorbell record: consumer index, then arm word.
    pub doorbell_record: u64,
    /// UAR page that its arm doorbells come through.
    pub uar: u32,
    /// Overwrites unread entries silently (CQC.oi).
    pub overrun_ignore: bool,
    /// How its events are held back.
    pub moderation: Moderation,
}

/// How long an armed completion queue holds its event back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moderation {
    /// Microseconds (CQC.cq_period); 0 for no moderation.
    pub period: u16,
    /// Completions that end the wait early (CQC.cq_max_count); 0 for no moderation.
    pub max_count: u16,
    /// The period starts anew with each completion; otherwise it counts from the event before.
    pub from_completion: bool,
}

impl Moderation {
    /// Whether events may wait at all.
    pub fn is_on(&self) -> bool {
        self.period > 0 && self.max_count > 1
    }
}

/// What MODIFY_CQ sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqChange {
    /// See [`CqSpec::moderation`].
    pub moderation: Moderation,
    /// See [`CqSpec::overrun_ignore`].
    pub overrun_ignore: bool,
}

/// A send queue.
#[derive(Clone, Debug)]
pub struct SqSpec {
    /// Its number.
    pub sqn: u32,
    /// Where the ring lies.
    pub ring: RingMemory,
    /// Logarithm of its WQE basic blocks of 64 bytes.
    pub log_size: u32,
    /// Device address of the doorbell record pair; the send index is its second word.
    pub doorbell_record: u64,
    /// UAR page that its doorbells come through.
    pub uar: u32,
    /// Completion queue.
    pub cqn: u32,
    /// Has a way out (a TIS). A queue without is for work inside the device: NOP.
    pub transmits: bool,
    /// Protection domain.
    pub pd: u32,
    /// Inline header that the device insists on.
    pub inline: InlineMode,
    /// In error state WQEs are completed as flushed (SQC.flush_in_error_en).
    pub flush_in_error: bool,
    /// Value that completions carry (SQC.user_index).
    pub user_index: u32,
    /// State to start in.
    pub state: QueueState,
}

/// A receive queue of plain cyclic WQEs.
#[derive(Clone, Debug)]
pub struct RqSpec {
    /// Its number.
    pub rqn: u32,
    /// Where the ring lies.
    pub ring: RingMemory,
    /// Logarithm of its WQEs.
    pub log_size: u32,
    /// Logarithm of a WQE's size in bytes (4 and up).
    pub log_stride: u32,
    /// Device address of the doorbell record pair; the receive index is its first word.
    pub doorbell_record: u64,
    /// Completion queue.
    pub cqn: u32,
    /// Protection domain.
    pub pd: u32,
    /// Takes the outer VLAN tag out of the packet and puts it in the completion (RQC.vsd clear).
    pub vlan_strip: bool,
    /// Appends the frame check sequence to the packet (RQC.scatter_fcs).
    pub scatter_fcs: bool,
    /// Counter set whose out-of-buffer counter it feeds.
    pub counter_set: u8,
    /// In error state WQEs are completed as flushed (RQC.flush_in_error_en).
    pub flush_in_error: bool,
    /// Value that completions carry (RQC.user_index).
    pub user_index: u32,
    /// State to start in.
    pub state: QueueState,
}

/// What MODIFY_RQ changes; `None` leaves a field alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RqChange {
    /// New state. To [`QueueState::Reset`] zeroes the indices; the transitions that are legal are
    /// the command side's business.
    pub state: Option<QueueState>,
    /// See [`RqSpec::vlan_strip`].
    pub vlan_strip: Option<bool>,
    /// See [`RqSpec::scatter_fcs`].
    pub scatter_fcs: Option<bool>,
    /// See [`RqSpec::counter_set`].
    pub counter_set: Option<u8>,
}

/// What a queue is doing, as QUERY_SQ and QUERY_RQ tell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueStatus {
    /// State, which the data thread may have moved to [`QueueState::Error`] itself.
    pub state: QueueState,
    /// WQEs (basic blocks for a send queue) that the device has taken, modulo 2^16.
    pub hardware_index: u16,
    /// What the doorbell record said last, modulo 2^16.
    pub software_index: u16,
}

/// What a completion queue is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqStatus {
    /// Overrun, or its memory went away.
    pub error: bool,
    /// Armed for its next completion.
    pub armed: bool,
    /// Entries written, modulo 2^24.
    pub producer: u32,
    /// What the doorbell record said last, modulo 2^24.
    pub consumer: u32,
}

/// How a memory key translates addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Translation {
    /// Addresses are device addresses (access mode PA).
    Physical,
    /// `pages[(address - start + offset) >> log_page_size]` (access mode MTT).
    Pages {
        /// Device addresses of the pages.
        pages: Vec<u64>,
        /// Logarithm of the page size in bytes.
        log_page_size: u32,
        /// Where the range starts in the first page, in bytes.
        offset: u64,
    },
}

/// A memory key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MkeySpec {
    /// Index in the upper 24 bits, variant in the lower 8.
    pub key: u32,
    /// Protection domain; `None` for a key that every domain may use.
    pub pd: Option<u32>,
    /// First address.
    pub start: u64,
    /// Bytes; `None` for the whole address space (length64).
    pub len: Option<u64>,
    /// The device may read (TX).
    pub local_read: bool,
    /// The device may write (RX).
    pub local_write: bool,
    /// How addresses become device addresses.
    pub translation: Translation,
}

/// Which header fields go into the receive hash (TIRC.rx_hash_field_selector).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HashFields {
    /// The tuple is IPv6's; packets of the other version hash to 0 over nothing.
    pub ipv6: bool,
    /// The ports are UDP's rather than TCP's.
    pub udp: bool,
    /// Source IP address.
    pub source_ip: bool,
    /// Destination IP address.
    pub destination_ip: bool,
    /// Source port.
    pub source_port: bool,
    /// Destination port.
    pub destination_port: bool,
    /// Security parameters index of AH or ESP; not together with ports.
    pub spi: bool,
}

/// How a TIR finds its receive queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dispatch {
    /// One queue.
    Direct {
        /// Its number.
        rqn: u32,
    },
    /// The queue that the hash picks in a table.
    Indirect {
        /// Number of the table.
        rqtn: u32,
        /// How the hash is made.
        hash: Hash,
    },
}

/// Hash functions of a TIR (TIRC.rx_hash_fn).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hash {
    /// Always the table's first entry.
    None,
    /// Exclusive or of the fields, folded to 8 bits.
    Xor8 {
        /// Fields taken.
        fields: HashFields,
    },
    /// Toeplitz.
    Toeplitz {
        /// Fields taken.
        fields: HashFields,
        /// Both directions of a flow hash alike (rx_hash_symmetric): a pair of source and
        /// destination goes in as its or and its exclusive or.
        symmetric: bool,
        /// Key as in the context, most significant byte first.
        key: Box<[u8; 40]>,
    },
}

/// A transport interface receive object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TirSpec {
    /// Its number.
    pub tirn: u32,
    /// Where its packets go.
    pub dispatch: Dispatch,
}

/// A table of receive queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RqtSpec {
    /// Its number.
    pub rqtn: u32,
    /// Queue numbers; a packet takes entry `hash % entries`.
    pub queues: Vec<u32>,
}

/// State of a function's vport and port, as far as packets feel it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkSpec {
    /// The driver wants the port up and no fault keeps it down; a packet crosses only when the
    /// wire's far end is up too.
    pub up: bool,
    /// Largest frame in bytes, Ethernet header and VLAN tags included, check sequence not.
    pub max_frame: u32,
}

/// What the data thread tells the command side. Called on the data thread: the receiver queues
/// the event, wakes its own thread, and returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataEvent {
    /// An armed completion queue got a completion; it is disarmed now.
    Completion {
        /// Its number.
        cqn: u32,
    },
    /// A completion queue failed (EQE type CQ error).
    CqError {
        /// Its number.
        cqn: u32,
        /// Why: 1 overrun, 2 its memory cannot be reached (EQE syndrome).
        syndrome: u8,
    },
    /// A send queue moved to error state.
    SqError {
        /// Its number.
        sqn: u32,
        /// What went wrong first.
        cause: QueueFault,
    },
    /// A receive queue moved to error state.
    RqError {
        /// Its number.
        rqn: u32,
        /// What went wrong first.
        cause: QueueFault,
    },
    /// An EQ doorbell on a mapped page was seen (pages given to `watch_eq`).
    EqDoorbell {
        /// UAR page.
        uar: u32,
        /// 0x40 (arm) or 0x48 (no arm).
        offset: u32,
        /// Its 32-bit value, native.
        value: u32,
    },
    /// The link changed because the wire's far end did.
    Link {
        /// Whether packets can cross.
        up: bool,
    },
}

/// Why a queue moved to error state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueFault {
    /// A WQE failed; its completion carries syndrome and vendor syndrome.
    Completion {
        /// CQE syndrome.
        syndrome: u8,
        /// CQE vendor error syndrome.
        vendor: u8,
    },
    /// The completion queue is in error.
    CompletionQueue,
    /// Ring or doorbell record cannot be reached.
    Memory {
        /// The address.
        iova: Iova,
    },
    /// The doorbell record claims more WQEs than the ring holds.
    Index,
}

/// Frame and byte counters. Bytes are without the frame check sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Frames.
    pub frames: u64,
    /// Bytes.
    pub bytes: u64,
}

/// One direction of a port or vport.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Direction {
    /// To one station.
    pub unicast: Traffic,
    /// To a group.
    pub multicast: Traffic,
    /// To all.
    pub broadcast: Traffic,
}

impl Direction {
    /// All three together.
    pub fn total(&self) -> Traffic {
        Traffic {
            frames: self.unicast.frames + self.multicast.frames + self.broadcast.frames,
            bytes: self.unicast.bytes + self.multicast.bytes + self.broadcast.bytes,
        }
    }
}

/// Classes of frame lengths that a port counts.
pub const SIZE_CLASSES: usize = 10;

/// The class of a frame of `len` bytes without check sequence. With it, classes are up to 64, 127,
/// 255, 511, 1023, 1518, 2047, 4095, 8191 bytes, and longer ones (PPCNT, RFC 2819 group).
#[inline(always)]
pub const fn size_class(len: usize) -> usize {
    let whole = len + 4;
    // Powers of two, but that 64 belongs to what is below it, and that there is a limit at 1518.
    let power = (whole | 32).ilog2() as usize - 5;
    let class = power + (whole > 1518) as usize - (whole == 64) as usize;
    if class < SIZE_CLASSES {
        class
    } else {
        SIZE_CLASSES - 1
    }
}

/// Counters of a function, for PPCNT, QUERY_VPORT_COUNTER, QUERY_VNIC_ENV and QUERY_Q_COUNTER.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames from the wire that fit the port.
    pub port_rx: Direction,
    /// Frames to the wire.
    pub port_tx: Direction,
    /// The same frames by length, check sequence included: as [`size_class`] tells.
    pub rx_sizes: [u64; SIZE_CLASSES],
    /// Frames from the wire that were larger than the port takes.
    pub rx_too_long: u64,
    /// Frames from the wire shorter than an Ethernet header.
    pub rx_too_short: u64,
    /// Frames for which no receive queue had a buffer (dropped, not waiting ones).
    pub rx_discards: u64,
    /// Frames larger than the receive buffer they met.
    pub rx_buffer_too_small: u64,
    /// Frames dropped by a flow entry.
    pub rx_flow_drops: u64,
    /// Frames that no flow entry wanted, or that reached a TIR without a ready queue.
    pub rx_no_destination: u64,
    /// Frames dropped because the link was down.
    pub tx_discards: u64,
    /// WQEs that ended in an error.
    pub tx_errors: u64,
    /// Frames handed to receive queues.
    pub vport_rx: Direction,
    /// Frames sent by send queues.
    pub vport_tx: Direction,
    /// Doorbells for queues that do not exist or belong to another page.
    pub stray_doorbells: u64,
}
