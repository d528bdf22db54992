//! Random mixes of calls against simple models.
// A test states its expectation by failing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{HashMap, HashSet, VecDeque};

use pollux_mempool::ring::{Mode, Multi, Ring, Single};
use pollux_mempool::{Burst, InFlight, Lcore, Mbuf, PageChoice, Pool, PoolConfig};
use proptest::prelude::*;

fn pool(count: usize, cache: usize, chunks: usize) -> Pool {
    let config = PoolConfig::new("model", count)
        .page(PageChoice::Ordinary)
        .data_room(64)
        .headroom(16)
        .cache(cache)
        .chunks(chunks);
    Pool::new(&config).unwrap()
}

/// A buffer: pool, number.
type Id = (u16, u32);

/// What a packet must be.
struct Packet {
    mbuf: Mbuf,
    bytes: Vec<u8>,
    /// Per segment: the header, and the header whose room it shows.
    parts: Vec<(Id, Id)>,
}

impl Packet {
    fn ids(mbuf: &Mbuf) -> Vec<Id> {
        mbuf.segments().map(|s| (s.pool_id(), s.index())).collect()
    }
}

#[derive(Clone, Debug)]
enum Op {
    Alloc(usize),
    AllocBulk(usize, usize),
    Free(usize),
    FreeBulk(usize),
    Clone(usize),
    Chain(usize, usize),
    Append(usize, u8),
    Prepend(usize, u8),
    Adj(usize, usize),
    Trim(usize, usize),
    Write(usize, u8),
    ThroughInFlight(usize, usize),
    Flush,
    Reset(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let k = 0..64usize;
    prop_oneof![
        4 => (0..2usize).prop_map(Op::Alloc),
        2 => (0..2usize, 0..20usize).prop_map(|(p, n)| Op::AllocBulk(p, n)),
        3 => k.clone().prop_map(Op::Free),
        2 => (0..20usize).prop_map(Op::FreeBulk),
        2 => k.clone().prop_map(Op::Clone),
        2 => (k.clone(), k.clone()).prop_map(|(a, b)| Op::Chain(a, b)),
        3 => (k.clone(), any::<u8>()).prop_map(|(k, b)| Op::Append(k, b)),
        1 => (k.clone(), any::<u8>()).prop_map(|(k, b)| Op::Prepend(k, b)),
        1 => (k.clone(), 0..4usize).prop_map(|(k, n)| Op::Adj(k, n)),
        1 => (k.clone(), 0..4usize).prop_map(|(k, n)| Op::Trim(k, n)),
        2 => (k.clone(), any::<u8>()).prop_map(|(k, b)| Op::Write(k, b)),
        1 => (0..16usize, 0..20usize).prop_map(|(i, n)| Op::ThroughInFlight(i, n)),
        1 => Just(Op::Flush),
        1 => k.prop_map(Op::Reset),
    ]
}

struct World {
    pools: [Pool; 2],
    held: Vec<Packet>,
}

impl World {
    fn at(&mut self, k: usize) -> Option<&mut Packet> {
        let n = self.held.len();
        (n != 0).then(|| &mut self.held[k % n])
    }

    fn hold(&mut self, mbuf: Mbuf) {
        assert_eq!(mbuf.nb_segs(), 1);
        let id = (mbuf.pool_id(), mbuf.index());
        self.held.push(Packet {
            mbuf,
            bytes: Vec::new(),
            parts: vec![(id, id)],
        });
    }

    /// How many headers show the room that the segment shows, itself included; a room
    /// whose own header is still held counts that too.
    fn sharers(&self, room: Id) -> usize {
        let parts = self.held.iter().flat_map(|p| &p.parts);
        parts.filter(|(_, r)| *r == room).count()
    }

    fn take(&mut self, n: usize) -> Vec<Packet> {
        let n = n.min(self.held.len());
        self.held.drain(..n).collect()
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Alloc(p) => {
                let free = self.pools[p].available();
                let got = self.pools[p].alloc();
                assert_eq!(got.is_some(), free > 0);
                got.into_iter().for_each(|m| self.hold(m));
            }
            Op::AllocBulk(p, n) => {
                let free = self.pools[p].available();
                let mut burst = Burst::with_capacity(20);
                assert_eq!(self.pools[p].alloc_bulk(&mut burst, n), n <= free);
                burst.drain().for_each(|m| self.hold(m));
            }
            Op::Free(k) => {
                if !self.held.is_empty() {
                    let k = k % self.held.len();
                    drop(self.held.swap_remove(k));
                }
            }
            Op::FreeBulk(n) => {
                let mut burst = Burst::with_capacity(20);
                for packet in self.take(n) {
                    burst.push(packet.mbuf).unwrap();
                }
                self.pools[0].put_bulk(&mut burst);
                assert!(burst.is_empty());
            }
            Op::Clone(k) => {
                let Some(from) = self.at(k) else { return };
                let Some(mbuf) = from.mbuf.clone_ref() else {
                    return;
                };
                let rooms = from.parts.iter().map(|(_, room)| *room);
                let parts = Packet::ids(&mbuf).into_iter().zip(rooms).collect();
                let bytes = from.bytes.clone();
                self.held.push(Packet { mbuf, bytes, parts });
            }
            Op::Chain(a, b) => {
                if self.held.len() < 2 {
                    return;
                }
                let tail = self.held.swap_remove(b % self.held.len());
                let Some(head) = self.at(a) else { return };
                head.mbuf.push_segment(tail.mbuf).unwrap();
                head.bytes.extend(tail.bytes);
                head.parts.extend(tail.parts);
            }
            Op::Append(k, byte) => {
                let Some(packet) = self.at(k) else { return };
                let room = packet.parts.last().unwrap().1;
                let done = packet.mbuf.extend_from_slice(&[byte]);
                if done {
                    packet.bytes.push(byte);
                    assert_eq!(self.sharers(room), 1, "written while shared");
                }
            }
            Op::Prepend(k, byte) => {
                let Some(packet) = self.at(k) else { return };
                let room = packet.parts[0].1;
                if let Some(place) = packet.mbuf.prepend(1) {
                    place[0] = byte;
                    packet.bytes.insert(0, byte);
                    assert_eq!(self.sharers(room), 1, "written while shared");
                }
            }
            Op::Adj(k, n) => {
                let Some(packet) = self.at(k) else { return };
                let fits = n <= packet.mbuf.data_len();
                assert_eq!(packet.mbuf.adj(n), fits);
                if fits {
                    packet.bytes.drain(..n);
                }
            }
            Op::Trim(k, n) => {
                let Some(packet) = self.at(k) else { return };
                let fits = n <= packet.mbuf.segments().last().unwrap().data_len();
                assert_eq!(packet.mbuf.trim(n), fits);
                if fits {
                    packet.bytes.truncate(packet.bytes.len() - n);
                }
            }
            Op::Write(k, byte) => {
                let Some(packet) = self.at(k) else { return };
                let room = packet.parts[0].1;
                let mine = packet.parts[0].0;
                let mut wrote = false;
                if let Some(data) = packet.mbuf.data_mut() {
                    wrote = true;
                    let n = data.len();
                    data.fill(byte);
                    packet.bytes[..n].fill(byte);
                }
                assert_eq!(wrote, self.sharers(room) == 1, "{mine:?} {room:?}");
            }
            Op::ThroughInFlight(i, n) => {
                // `i` earlier ones bring the later ones over the end.
                let mut flying = InFlight::new(16).unwrap();
                if flying.fill_from(&self.pools[0], i) {
                    flying.free_oldest(i);
                }
                let mut burst = Burst::with_capacity(20);
                let mut rest = self.take(n);
                for packet in &mut rest {
                    let gone = std::mem::replace(&mut packet.mbuf, dummy(&self.pools));
                    burst.push(gone).unwrap();
                }
                let put = flying.put_from(&mut burst, n);
                assert_eq!(put, rest.len().min(16));
                let mut back = Burst::with_capacity(20);
                assert_eq!(flying.take_into(&mut back, 16), put);
                burst.move_to(&mut back, 20);
                for (packet, mbuf) in rest.iter_mut().zip(back.drain()) {
                    packet.mbuf = mbuf;
                }
                self.held.append(&mut rest);
            }
            Op::Flush => self.pools.iter().for_each(Pool::flush_cache),
            Op::Reset(k) => {
                let Some(packet) = self.at(k) else { return };
                packet.mbuf.reset();
                packet.bytes.clear();
                packet.parts.truncate(1);
            }
        }
    }

    fn check(&self) {
        let mut owned = HashSet::new();
        for packet in &self.held {
            assert_eq!(packet.mbuf.to_vec(), packet.bytes);
            assert_eq!(packet.mbuf.pkt_len(), packet.bytes.len());
            let ids = Packet::ids(&packet.mbuf);
            assert_eq!(usize::from(packet.mbuf.nb_segs()), ids.len());
            for (id, part) in ids.iter().zip(&packet.parts) {
                assert_eq!(*id, part.0);
                assert!(owned.insert(*id), "owned twice: {id:?}");
            }
            assert_eq!(ids.len(), packet.parts.len());
        }
        // Rooms that are shown keep their buffer away from home.
        let shown = self.held.iter().flat_map(|p| &p.parts).map(|(_, r)| *r);
        owned.extend(shown);
        let mut out: HashMap<u16, usize> = HashMap::new();
        for (pool, _) in owned {
            *out.entry(pool).or_default() += 1;
        }
        for pool in &self.pools {
            assert_eq!(pool.in_use(), out.get(&pool.id()).copied().unwrap_or(0));
        }
    }
}

thread_local! {
    static DUMMY: Pool = pool(64, 0, 1);
}

/// A stand-in from a third pool.
fn dummy(_: &[Pool; 2]) -> Mbuf {
    DUMMY.with(|p| p.alloc().unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn buffers_are_conserved_and_bytes_stay(
        registered: bool,
        caches in (0..17usize, 0..17usize),
        ops in prop::collection::vec(op(), 0..120),
    ) {
        let _lcore = registered.then(|| Lcore::register().unwrap());
        let mut world = World {
            pools: [pool(40, caches.0, 1), pool(33, caches.1, 4)],
            held: Vec::new(),
        };
        for op in &ops {
            world.apply(op);
            world.check();
        }
        world.held.clear();
        world.check();
    }

    #[test]
    fn rings_are_queues(
        capacity in 1..20usize,
        ops in prop::collection::vec((0..6u8, 0..12usize), 0..100),
    ) {
        ring_is_queue::<Single, Single>(capacity, &ops);
        ring_is_queue::<Single, Multi>(capacity, &ops);
        ring_is_queue::<Multi, Single>(capacity, &ops);
        ring_is_queue::<Multi, Multi>(capacity, &ops);
    }

    #[test]
    fn in_flight_is_a_queue(ops in prop::collection::vec((0..8u8, 0..9usize), 0..120)) {
        let pools = [pool(24, 0, 2), pool(17, 0, 1)];
        let mut flying = InFlight::new(8).unwrap();
        // Numbers of the packets in flight, of those in the burst, and clones held elsewhere.
        let (mut model, mut queue) = (VecDeque::new(), VecDeque::new());
        let mut clones = Vec::new();
        let mut burst = Burst::with_capacity(16);
        let name = |m: &Mbuf| (m.pool_id(), m.index());
        for (kind, n) in ops {
            match kind {
                0 | 1 => {
                    let pool = &pools[usize::from(kind)];
                    let possible = n <= 8 - model.len() && n <= pool.available();
                    prop_assert_eq!(flying.fill_from(pool, n), possible);
                    let added = flying.newest(if possible { n } else { 0 });
                    model.extend(added.into_iter().flatten().map(|m| name(m)));
                }
                2 | 3 => {
                    for _ in 0..n.min(burst.room()) {
                        let Some(m) = pools[usize::from(kind - 2)].alloc() else { break };
                        queue.push_back(name(&m));
                        prop_assert!(burst.push(m).is_ok());
                    }
                }
                4 => {
                    let expect = n.min(queue.len()).min(8 - model.len());
                    prop_assert_eq!(flying.put_from(&mut burst, n), expect);
                    model.extend(queue.drain(..expect));
                }
                5 => {
                    let expect = n.min(model.len()).min(burst.room());
                    prop_assert_eq!(flying.take_into(&mut burst, n), expect);
                    queue.extend(model.drain(..expect));
                }
                6 => {
                    flying.free_oldest(n);
                    model.drain(..n.min(model.len()));
                }
                _ => {
                    // Sharing makes a packet other than plain, in flight or before.
                    let lent = flying.oldest(n).into_iter().flatten();
                    clones.extend(lent.filter_map(|m| m.clone_ref()).take(1));
                    clones.extend(burst.iter().filter_map(Mbuf::clone_ref).take(n % 2));
                    if n == 3 {
                        clones.clear();
                    }
                }
            }
            prop_assert_eq!((flying.len(), flying.room()), (model.len(), 8 - model.len()));
            // What is lent is looked at again when it is freed: so look seldom.
            if kind == 7 {
                let there = flying.oldest(usize::MAX).into_iter().flatten();
                prop_assert!(there.map(|m| name(m)).eq(model.iter().copied()));
            }
            prop_assert!(burst.iter().map(name).eq(queue.iter().copied()));
            if clones.is_empty() {
                let out: usize = pools.iter().map(Pool::in_use).sum();
                prop_assert_eq!(out, model.len() + queue.len());
            }
        }
        drop((flying, burst, clones));
        for pool in &pools {
            prop_assert!(pool.check().is_ok());
        }
    }
}

fn ring_is_queue<P: Mode, C: Mode>(capacity: usize, ops: &[(u8, usize)]) {
    let (mut p, mut c) = Ring::<u64, P, C>::with_capacity(capacity).unwrap().split();
    let mut model = VecDeque::new();
    let mut next = 0u64;
    for &(kind, n) in ops {
        let values: Vec<u64> = (next..next + n as u64).collect();
        let room = capacity - model.len();
        let mut into = vec![0; n];
        match kind {
            0 => {
                let done = p.enqueue_bulk(&values);
                assert_eq!(done, n <= room);
                model.extend(values.into_iter().filter(|_| done));
            }
            1 => {
                let done = p.enqueue_burst(&values);
                assert_eq!(done, n.min(room));
                model.extend(&values[..done]);
            }
            2 => {
                assert_eq!(p.enqueue(next).is_ok(), room > 0);
                model.extend((room > 0).then_some(next));
            }
            3 => {
                let done = c.dequeue_bulk(&mut into);
                assert_eq!(done, n <= model.len());
                if done {
                    assert_eq!(into, model.drain(..n).collect::<Vec<_>>());
                }
            }
            4 => {
                let done = c.dequeue_burst(&mut into);
                assert_eq!(done, n.min(model.len()));
                assert_eq!(into[..done], model.drain(..done).collect::<Vec<_>>());
            }
            _ => assert_eq!(c.dequeue(), model.pop_front()),
        }
        next += n as u64 + 1;
        assert_eq!(p.ring().len(), model.len());
    }
}

#[test]
fn threads_share_a_pool_without_sharing_a_buffer() {
    for (cache, registered) in [(0, false), (16, true), (16, false)] {
        let pool = pool(200, cache, 3);
        std::thread::scope(|s| {
            for id in 0..3u8 {
                let pool = &pool;
                s.spawn(move || {
                    let _lcore = registered.then(|| Lcore::register().unwrap());
                    let mut burst = Burst::with_capacity(40);
                    for round in 0..400usize {
                        let n = (round * 7 + usize::from(id)) % 41;
                        if !pool.alloc_bulk(&mut burst, n) {
                            std::thread::yield_now();
                            continue;
                        }
                        for m in burst.iter_mut() {
                            m.append(32).unwrap().fill(id);
                        }
                        if round % 16 == 0 {
                            std::thread::yield_now();
                        }
                        // Nobody else wrote where we own.
                        assert!(burst.iter().all(|m| m.data() == [id; 32]));
                        burst.clear();
                    }
                });
            }
        });
        assert!(pool.check().is_ok());
    }
}

#[test]
fn several_producers_and_consumers_lose_nothing() {
    const EACH: u64 = 5_000;
    let ring = Ring::<u64, Multi, Multi>::with_capacity(50).unwrap();
    let sums: Vec<(u64, u64)> = std::thread::scope(|s| {
        for id in 0..2u64 {
            let ring = &ring;
            s.spawn(move || {
                let values: Vec<u64> = (0..EACH).map(|v| v * 2 + id).collect();
                let mut rest = &values[..];
                while !rest.is_empty() {
                    let n = ring.enqueue_burst(&rest[..rest.len().min(7)]);
                    rest = &rest[n..];
                    if n == 0 {
                        std::thread::yield_now();
                    }
                }
            });
        }
        let consumers: Vec<_> = (0..2)
            .map(|_| {
                s.spawn(|| {
                    let (mut count, mut sum) = (0, 0);
                    let mut into = [0; 5];
                    while count < EACH {
                        let room = into.len().min((EACH - count) as usize);
                        let n = ring.dequeue_burst(&mut into[..room]);
                        count += n as u64;
                        sum += into[..n].iter().sum::<u64>();
                        if n == 0 {
                            std::thread::yield_now();
                        }
                    }
                    (count, sum)
                })
            })
            .collect();
        consumers.into_iter().map(|c| c.join().unwrap()).collect()
    });
    let total: u64 = sums.iter().map(|(_, s)| s).sum();
    assert_eq!(total, (0..2 * EACH).sum::<u64>());
    assert!(ring.is_empty());
}
