//! Receive rules: the flow tables of a function as one snapshot, and the walk of a frame through
//! them.
//!
//! The command side hands over a [`Steering`] after each change of tables, groups, entries or
//! root. Masks and values stay in the PRM's `fte_match_set_lyr_2_4` layout (64 bytes); the frame
//! is brought into the same layout once, and a rule then costs eight words.

use super::frame::{Headers, L3, L4};
use std::collections::HashMap;

/// A mask or value over the outer headers, in the layout of `fte_match_set_lyr_2_4`.
pub type HeaderBits = [u8; 64];

/// All receive rules of a function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Steering {
    /// The table that frames meet first; without one they are dropped.
    pub root: Option<u32>,
    /// All receive tables.
    pub tables: Vec<FlowTable>,
}

/// One flow table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowTable {
    /// Its number.
    pub id: u32,
    /// Where frames go on that no entry matched; dropped without.
    pub miss: Option<u32>,
    /// Groups, in order of their first flow index.
    pub groups: Vec<FlowGroup>,
}

/// Entries that share a mask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowGroup {
    /// Bits that are compared.
    pub mask: HeaderBits,
    /// Entries, in order of their flow index.
    pub entries: Vec<FlowEntry>,
}

/// One flow entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowEntry {
    /// What the masked headers must be.
    pub value: HeaderBits,
    /// Tag that completions carry (24 bits).
    pub flow_tag: u32,
    /// Flow counters that count it.
    pub counters: Vec<u32>,
    /// What happens.
    pub action: FlowAction,
}

/// What an entry does with a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlowAction {
    /// Drops it.
    Drop,
    /// Sends it on, a copy to each.
    Forward(Vec<FlowDestination>),
}

/// Where an entry sends frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowDestination {
    /// Another table.
    Table(u32),
    /// A TIR.
    Tir(u32),
}

/// Words of the headers' layout.
const WORDS: usize = 8;
type Key = [u64; WORDS];

/// Tables that one frame may pass; more means that they lead in a circle.
const MAX_STEPS: usize = 64;

fn key_of(bits: &HeaderBits) -> Key {
    let mut key = [0; WORDS];
    for (word, bytes) in key.iter_mut().zip(bits.chunks_exact(8)) {
        *word = bytes
            .first_chunk::<8>()
            .map_or(0, |bytes| u64::from_le_bytes(*bytes));
    }
    key
}

#[inline(always)]
fn masked(key: &Key, mask: &Key) -> Key {
    let mut out = [0; WORDS];
    for (out, (key, mask)) in out.iter_mut().zip(key.iter().zip(mask)) {
        *out = key & mask;
    }
    out
}

/// The link-layer words of a frame's headers in the layout of `fte_match_set_lyr_2_4`; the
/// first byte is the lowest of its word.
#[inline(always)]
pub(super) fn frame_key(headers: &Headers) -> Key {
    let [first, second, ..] = *headers.words();
    let tag = headers.vlan.map_or(0, |(tag, _)| tag);
    let link = first >> 48
        | (second & 0xffff_ffff) << 16
        | u64::from(headers.ethertype.swap_bytes()) << 48;
    let station = first & 0xffff_ffff_ffff | u64::from(tag.swap_bytes()) << 48;
    [link, station, 0, 0, 0, 0, 0, 0]
}

/// The other words.
fn deepen(key: &mut Key, headers: &Headers) {
    let mut bytes = [0u8; 48];
    let (customer, service) = match headers.vlan {
        Some((_, service)) => (!service, service),
        None => (false, false),
    };
    let at = headers.l3_at;
    let (version, traffic, hops) = match headers.l3 {
        L3::V4 => (
            4u16,
            headers.half(at) as u8,
            (headers.half(at + 8) >> 8) as u8,
        ),
        L3::V6 => (6, (headers.half(at) >> 4) as u8, headers.half(at + 6) as u8),
        L3::None => (0, 0, 0),
    };
    let tcp = headers.l4 == L4::Tcp;
    let udp = headers.l4 == L4::Udp;
    let flags = u16::from(customer) << 15
        | u16::from(service) << 14
        | u16::from(headers.fragment) << 13
        | version << 9
        | if tcp { headers.tcp_flags() } else { 0 };
    let port = |wanted: bool, at: usize| {
        if wanted {
            headers.half(headers.l4_at + at)
        } else {
            0
        }
    };
    let header_words = if version == 4 {
        (headers.half(at) >> 8) as u8 & 0xf
    } else {
        0
    };
    let mut put = |at: usize, value: &[u8]| {
        if let Some(room) = bytes.get_mut(at..at + value.len()) {
            room.copy_from_slice(value);
        }
    };
    put(0, &[headers.protocol, traffic]);
    put(2, &flags.to_be_bytes());
    put(4, &port(tcp, 0).to_be_bytes());
    put(6, &port(tcp, 2).to_be_bytes());
    // MLX5_PACKET_L4_TYPE_* of mlx5_ifc.h.
    let kind = match headers.l4 {
        L4::None => 0u8,
        L4::Tcp => 1,
        L4::Udp => 2,
    };
    put(8, &[kind << 6]);
    put(10, &[header_words << 4, hops]);
    put(12, &port(udp, 0).to_be_bytes());
    put(14, &port(udp, 2).to_be_bytes());
    // An IPv4 address stands in the last four of the sixteen bytes.
    let (halves, source, destination) = match headers.l3 {
        L3::V4 => (2, at + 12, at + 16),
        L3::V6 => (8, at + 8, at + 24),
        L3::None => (0, 0, 0),
    };
    for k in 0..halves {
        let place = 16 - 2 * halves + 2 * k;
        put(16 + place, &headers.half(source + 2 * k).to_be_bytes());
        put(32 + place, &headers.half(destination + 2 * k).to_be_bytes());
    }
    for (word, chunk) in key.iter_mut().skip(2).zip(bytes.chunks_exact(8)) {
        *word = chunk
            .first_chunk::<8>()
            .map_or(0, |bytes| u64::from_le_bytes(*bytes));
    }
}

#[derive(Debug)]
struct Rule {
    value: Key,
    flow_tag: u32,
    counters: Vec<usize>,
    action: FlowAction,
    places: Vec<Place>,
}

/// A destination made ready.
#[derive(Clone, Copy, Debug)]
enum Place {
    Table(usize),
    Tir(usize),
}

#[derive(Debug)]
struct Group {
    mask: Key,
    rules: Vec<Rule>,
    /// Rules by value, for groups that are too large to walk.
    index: HashMap<Key, usize>,
}

#[derive(Debug)]
struct Table {
    miss: Option<usize>,
    groups: Vec<Group>,
}

/// Rules of a group up to which walking beats hashing.
const WALK: usize = 8;

impl Group {
    #[inline]
    fn find(&self, key: &Key) -> Option<&Rule> {
        let key = masked(key, &self.mask);
        if self.index.is_empty() {
            self.rules.iter().find(|rule| rule.value == key)
        } else {
            self.index.get(&key).and_then(|at| self.rules.get(*at))
        }
    }
}

/// What becomes of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Fate {
    /// Goes to the TIRs of [`Rules::tirs`].
    Deliver,
    /// An entry dropped it.
    Drop,
    /// No entry wanted it.
    #[default]
    Lost,
}

/// The answer for the frame before, to be used again without asking.
#[derive(Clone, Copy, Debug)]
pub(super) struct LastRule {
    link: u64,
    station: u64,
    link_mask: u64,
    station_mask: u64,
    /// Flow tag of its frames.
    pub flow_tag: u32,
}

impl LastRule {
    /// Whether the answer is right for a frame with these link-layer words.
    #[inline(always)]
    pub fn speaks_for(&self, [link, station]: [u64; 2]) -> bool {
        link & self.link_mask == self.link && station & self.station_mask == self.station
    }
}

/// The rules made ready, and the answer for the frame before.
///
/// Frames of one flow follow each other: the last answer is kept with the bits that it depends
/// on, those of all masks together.
#[derive(Debug, Default)]
pub(super) struct Rules {
    root: Option<usize>,
    tables: Vec<Table>,
    /// All masks together.
    union: Key,
    deep: bool,
    counters: Vec<(u32, u64, u64)>,
    places: HashMap<u32, usize>,
    last: Key,
    /// `last` and what follows from it are there.
    known: bool,
    fate: Fate,
    tirs: Vec<usize>,
    flow_tag: u32,
    counted: Vec<usize>,
}

impl Rules {
    /// Takes new rules; flow counters go on.
    ///
    /// Destinations become places: `place_of` tells that of a TIR.
    pub fn replace(&mut self, steering: &Steering, mut place_of: impl FnMut(u32) -> usize) {
        let numbers: HashMap<u32, usize> = steering
            .tables
            .iter()
            .enumerate()
            .map(|(at, table)| (table.id, at))
            .collect();
        self.root = steering.root.and_then(|id| numbers.get(&id).copied());
        self.union = [0; WORDS];
        self.tables.clear();
        for table in &steering.tables {
            let groups = table.groups.iter().map(|group| self.group(group)).collect();
            let miss = table.miss.and_then(|id| numbers.get(&id).copied());
            self.tables.push(Table { miss, groups });
        }
        let rules = self.tables.iter_mut().flat_map(|table| &mut table.groups);
        for rule in rules.flat_map(|group| &mut group.rules) {
            rule.places = match &rule.action {
                FlowAction::Drop => Vec::new(),
                FlowAction::Forward(to) => to
                    .iter()
                    .filter_map(|to| match to {
                        FlowDestination::Tir(tirn) => Some(Place::Tir(place_of(*tirn))),
                        FlowDestination::Table(id) => numbers.get(id).copied().map(Place::Table),
                    })
                    .collect(),
            };
        }
        let [_, _, deep @ ..] = &self.union;
        self.deep = deep.iter().any(|word| *word != 0);
        self.forget();
    }

    fn group(&mut self, group: &FlowGroup) -> Group {
        let mask = key_of(&group.mask);
        for (all, word) in self.union.iter_mut().zip(mask) {
            *all |= word;
        }
        let rules: Vec<Rule> = group
            .entries
            .iter()
            .map(|entry| Rule {
                value: masked(&key_of(&entry.value), &mask),
                flow_tag: entry.flow_tag,
                counters: entry.counters.iter().map(|id| self.place(*id)).collect(),
                action: entry.action.clone(),
                places: Vec::new(),
            })
            .collect();
        let mut index = HashMap::new();
        if rules.len() > WALK {
            for (at, rule) in rules.iter().enumerate() {
                // The first entry wins, as in the walk.
                index.entry(rule.value).or_insert(at);
            }
        }
        Group { mask, rules, index }
    }

    fn place(&mut self, id: u32) -> usize {
        let next = self.counters.len();
        let place = *self.places.entry(id).or_insert(next);
        if place == next {
            self.counters.push((id, 0, 0));
        }
        place
    }

    /// Forgets the last answer.
    pub fn forget(&mut self) {
        self.known = false;
    }

    /// Frames and bytes that a flow counter saw.
    pub fn counter(&mut self, id: u32, clear: bool) -> (u64, u64) {
        let Some((_, frames, bytes)) = self
            .places
            .get(&id)
            .and_then(|place| self.counters.get_mut(*place))
        else {
            return (0, 0);
        };
        let now = (*frames, *bytes);
        if clear {
            (*frames, *bytes) = (0, 0);
        }
        now
    }

    /// Places of the TIRs that rules lead to, for telling whether anybody receives.
    pub fn destinations(&self) -> impl Iterator<Item = usize> {
        let rules = self
            .tables
            .iter()
            .flat_map(|table| &table.groups)
            .flat_map(|g| &g.rules);
        rules
            .flat_map(|rule| &rule.places)
            .filter_map(|place| match place {
                Place::Tir(place) => Some(*place),
                Place::Table(_) => None,
            })
    }

    /// Whether there is a first table.
    pub fn has_root(&self) -> bool {
        self.root.is_some()
    }

    /// Finds what becomes of a frame. Nothing is counted yet: the frame may have to wait.
    #[inline(always)]
    pub fn find(&mut self, headers: &Headers) -> Fate {
        let (mut key, [link, station, ..]) = (frame_key(headers), self.union);
        let [first, second, ..] = &mut key;
        *first &= link;
        *second &= station;
        if self.deep {
            deepen(&mut key, headers);
            key = masked(&key, &self.union);
            if self.last == key && self.known {
                return self.fate;
            }
        } else {
            let ([one, two, ..], [a, b, ..]) = (key, self.last);
            if one == a && two == b && self.known {
                return self.fate;
            }
        }
        self.walk(key)
    }

    /// The answer given last and the TIR that it names, if it depends on nothing beyond the link
    /// layer, leads to one TIR, and counts nothing.
    #[inline(always)]
    pub fn last(&self) -> Option<(LastRule, usize)> {
        let [place] = *self.tirs.as_slice() else {
            return None;
        };
        let short = self.known && !self.deep && self.fate == Fate::Deliver;
        let ([link, station, ..], [link_mask, station_mask, ..]) = (self.last, self.union);
        let rule = LastRule {
            link,
            station,
            link_mask,
            station_mask,
            flow_tag: self.flow_tag,
        };
        (short && self.counted.is_empty()).then_some((rule, place))
    }

    #[inline(never)]
    fn walk(&mut self, key: Key) -> Fate {
        self.tirs.clear();
        self.counted.clear();
        self.flow_tag = 0;
        let mut dropped = false;
        let mut step = 0;
        // Tables still to be passed; a frame may be copied to several.
        let mut open = [0usize; 8];
        let mut count = 0usize;
        if let (Some(root), [first, ..]) = (self.root, &mut open) {
            *first = root;
            count = 1;
        }
        while let Some(at) = count.checked_sub(1) {
            count = at;
            step += 1;
            let Some(table) = open.get(at).and_then(|table| self.tables.get(*table)) else {
                break;
            };
            if step > MAX_STEPS {
                break;
            }
            let Some(rule) = table.groups.iter().find_map(|group| group.find(&key)) else {
                if let (Some(miss), Some(slot)) = (table.miss, open.get_mut(count)) {
                    *slot = miss;
                    count += 1;
                }
                continue;
            };
            self.counted.extend_from_slice(&rule.counters);
            dropped |= rule.action == FlowAction::Drop;
            for place in &rule.places {
                match place {
                    Place::Tir(place) => {
                        self.flow_tag = rule.flow_tag;
                        self.tirs.push(*place);
                    }
                    Place::Table(next) => {
                        if let Some(slot) = open.get_mut(count) {
                            *slot = *next;
                            count += 1;
                        }
                    }
                }
            }
        }
        let fate = match (self.tirs.is_empty(), dropped) {
            (false, _) => Fate::Deliver,
            (true, true) => Fate::Drop,
            (true, false) => Fate::Lost,
        };
        self.last = key;
        self.known = true;
        self.fate = fate;
        fate
    }

    /// Places of the TIRs that get the frame that was found last.
    #[inline(always)]
    pub fn tirs(&self) -> &[usize] {
        &self.tirs
    }

    /// Flow tag of the frame that was found last.
    #[inline(always)]
    pub fn flow_tag(&self) -> u32 {
        self.flow_tag
    }

    /// Counts the frame that was found last.
    #[inline(always)]
    pub fn count(&mut self, bytes: usize) {
        for place in &self.counted {
            if let Some((_, frames, total)) = self.counters.get_mut(*place) {
                *frames += 1;
                *total += bytes as u64;
            }
        }
    }
}
