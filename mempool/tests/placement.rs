//! Nodes, CPUs, hugepages and limits: what a machine offers and what is refused.
// A test states its expectation by failing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use pollux_mempool::topology::{
    self, Binding, HugepageCount, SysfsTopology, Topology, Unpopulated,
};
use pollux_mempool::{
    Lcore, MemoryError, NodeId, PageChoice, PageSize, Pool, PoolConfig, Segment, SegmentRequest,
    lcore,
};

/// A folder with files, removed at the end.
struct Tree(PathBuf);

impl Tree {
    fn new(files: &[(&str, &str)]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let root =
            std::env::temp_dir().join(format!("pollux-mempool-{}-{number}", std::process::id()));
        let tree = Self(root);
        for (name, text) in files {
            let path = tree.0.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        tree
    }

    fn root(&self) -> &Path {
        &self.0
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

/// Two nodes, four CPUs, 2 MiB pages: 10 on node 0 (4 free), 6 on node 1 (6 free, 3 of
/// the 10 free ones reserved).
fn two_nodes() -> Tree {
    const H: &str = "hugepages-2048kB";
    let node = "sys/devices/system/node";
    let files = [
        (format!("{node}/online"), "0-1\n"),
        (format!("{node}/has_memory"), "0-1\n"),
        (format!("{node}/node0/cpulist"), "0-1\n"),
        (format!("{node}/node1/cpulist"), "2-3\n"),
        (
            format!("{node}/node0/meminfo"),
            "Node 0 MemTotal: 1000 kB\nNode 0 MemFree: 300 kB\nNode 0 Inactive(file): 50 kB\n",
        ),
        (format!("{node}/node1/meminfo"), "Node 1 MemFree: 40 kB\n"),
        (format!("{node}/node0/hugepages/{H}/nr_hugepages"), "10\n"),
        (format!("{node}/node0/hugepages/{H}/free_hugepages"), "4\n"),
        (format!("{node}/node1/hugepages/{H}/nr_hugepages"), "6\n"),
        (format!("{node}/node1/hugepages/{H}/free_hugepages"), "6\n"),
        (format!("sys/kernel/mm/hugepages/{H}/nr_hugepages"), "16\n"),
        (
            format!("sys/kernel/mm/hugepages/{H}/free_hugepages"),
            "10\n",
        ),
        (format!("sys/kernel/mm/hugepages/{H}/resv_hugepages"), "3\n"),
        (
            "proc/meminfo".to_owned(),
            "MemTotal: 9 kB\nMemAvailable: 800 kB\n",
        ),
        (
            "sys/bus/pci/devices/0000:3b:00.0/numa_node".to_owned(),
            "1\n",
        ),
        (
            "sys/bus/pci/devices/0000:3b:00.1/numa_node".to_owned(),
            "-1\n",
        ),
    ];
    let files: Vec<(&str, &str)> = files.iter().map(|(n, t)| (n.as_str(), *t)).collect();
    Tree::new(&files)
}

#[test]
fn the_kernels_files_are_read_as_meant() {
    let tree = two_nodes();
    let t = SysfsTopology::at(tree.root());
    assert!(!t.is_this_system());
    assert_eq!(t.nodes(), [NodeId(0), NodeId(1)]);
    assert_eq!(t.cpus_of_node(NodeId(1)), [2, 3]);
    assert_eq!(t.cpus_of_node(NodeId(7)), [0usize; 0]);
    assert_eq!(t.node_of_cpu(2), Some(NodeId(1)));
    assert_eq!(t.node_of_cpu(9), None);
    assert_eq!(t.node_of_pci("0000:3b:00.0"), Some(NodeId(1)));
    assert_eq!(t.node_of_pci("0000:3b:00.1"), None);
    assert_eq!(t.node_of_pci("0000:00:00.0"), None);
    assert_eq!(t.node_of_pci("../../../etc"), None);
    assert_eq!(t.free_memory(None), Some(800 * 1024));
    assert_eq!(t.free_memory(Some(NodeId(0))), Some(350 * 1024));
    assert_eq!(t.free_memory(Some(NodeId(7))), None);
    let count = |node| t.hugepages(PageSize::HUGE_2M, node);
    // Reserved pages are not free.
    assert_eq!(count(None), Some(HugepageCount { total: 16, free: 7 }));
    assert_eq!(
        count(Some(NodeId(0))),
        Some(HugepageCount { total: 10, free: 4 })
    );
    assert_eq!(
        count(Some(NodeId(1))),
        Some(HugepageCount { total: 6, free: 6 })
    );
    assert_eq!(t.hugepages(PageSize::HUGE_1G, None), None);
}

#[test]
fn a_machine_without_numa_is_node_zero() {
    let tree = Tree::new(&[
        ("sys/devices/system/cpu/online", "0-2\n"),
        ("proc/meminfo", "MemAvailable: 5 kB\n"),
    ]);
    let t = SysfsTopology::at(tree.root());
    assert_eq!(t.nodes(), [NodeId(0)]);
    assert_eq!(t.cpus_of_node(NodeId(0)), [0, 1, 2]);
    assert_eq!(t.node_of_cpu(1), Some(NodeId(0)));
    assert_eq!(t.free_memory(Some(NodeId(0))), Some(5 * 1024));
    // Whoever looks a pool up by node finds it under the same key as who made it.
    assert_eq!(t.home(None), NodeId(0));
    assert_eq!(t.home(Some(NodeId(3))), NodeId(0));
}

#[test]
fn too_few_hugepages_on_the_node_are_named_with_the_remedy() {
    let tree = two_nodes();
    let t = SysfsTopology::at(tree.root());
    let request = SegmentRequest::new("rx pool", 10 << 20)
        .page(PageChoice::Huge2M)
        .node(Some(NodeId(0)));
    let e = Segment::map_on(&request, &t).unwrap_err();
    assert!(
        matches!(
            e,
            MemoryError::NoHugepages {
                needed: 5,
                free: 4,
                total: 10,
                node: Some(NodeId(0)),
                ..
            }
        ),
        "{e}"
    );
    assert_eq!(
        e.to_string(),
        "rx pool: 5 hugepages of 2 MiB needed, 4 free on NUMA node 0 (of 10); run: echo 11 | \
         sudo tee /sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages"
    );
    let e = Segment::map_on(&request.page(PageChoice::Huge1G), &t).unwrap_err();
    assert!(matches!(e, MemoryError::PageSizeUnsupported { .. }), "{e}");
    assert!(e.to_string().contains("it offers 2 MiB"), "{e}");
}

#[test]
fn a_node_without_memory_is_named() {
    let tree = two_nodes();
    let t = SysfsTopology::at(tree.root());
    let small = SegmentRequest::new("q", 64 << 10).page(PageChoice::Ordinary);
    let e = Segment::map_on(&small.clone().node(Some(NodeId(1))), &t).unwrap_err();
    assert_eq!(
        e.to_string(),
        "q: 65536 bytes needed, 40960 free on NUMA node 1; ask for less, or free memory there"
    );
    let e = Segment::map_on(&small.node(Some(NodeId(2))), &t).unwrap_err();
    assert_eq!(
        e.to_string(),
        "NUMA node 2 asked; nodes with memory here: 0-1"
    );
}

#[test]
fn a_pool_is_checked_as_a_whole_before_any_of_it_is_taken() {
    let tree = two_nodes();
    let t = SysfsTopology::at(tree.root());
    // Each of three chunks fits the free hugepages, all of them do not.
    let config = PoolConfig::new("p", 3000)
        .chunks(3)
        .page(PageChoice::Huge2M)
        .node(Some(NodeId(0)));
    let e = Pool::new_on(&config, &t).unwrap_err();
    let MemoryError::NoHugepages { needed, free, .. } = e else {
        panic!("{e}");
    };
    assert_eq!((needed, free), (6, 4));
}

#[test]
fn best_effort_says_what_it_fell_back_from() {
    let tree = Tree::new(&[("proc/meminfo", "MemAvailable: 100000 kB\n")]);
    let t = SysfsTopology::at(tree.root());
    let s = Segment::map_on(&SegmentRequest::new("pool", 2 << 20), &t).unwrap();
    assert_eq!(s.page_size(), PageSize::ordinary());
    let why = s.shortfall().unwrap();
    assert!(
        why.contains("pool: this kernel offers no hugepages of 2 MiB"),
        "{why}"
    );
    assert!(why.contains("cycles per packet"), "{why}");
    // Small segments are not worth a hugepage, nor a word.
    let s = Segment::map_on(&SegmentRequest::new("queue", 64 << 10), &t).unwrap();
    assert_eq!(s.shortfall(), None);
}

/// This machine, but memory runs out after some looks at it, and binding is not allowed.
#[derive(Debug)]
struct Shrinking {
    looks: AtomicU32,
}

impl Topology for Shrinking {
    fn source(&self) -> &'static str {
        "test"
    }

    fn is_this_system(&self) -> bool {
        true
    }

    fn nodes(&self) -> Vec<NodeId> {
        vec![NodeId(0)]
    }

    fn cpus_of_node(&self, _: NodeId) -> Vec<usize> {
        Vec::new()
    }

    fn node_of_cpu(&self, _: usize) -> Option<NodeId> {
        None
    }

    fn node_of_pci(&self, _: &str) -> Option<NodeId> {
        None
    }

    fn free_memory(&self, _: Option<NodeId>) -> Option<u64> {
        let left = self.looks.fetch_sub(1, Ordering::Relaxed);
        Some(if left > 1 { 1 << 40 } else { 0 })
    }

    fn hugepages(&self, _: PageSize, _: Option<NodeId>) -> Option<HugepageCount> {
        None
    }

    fn bind_memory(&self, _: &Unpopulated<'_>, _: NodeId) -> Binding {
        Binding::Refused("mbind: Operation not permitted".into())
    }
}

#[test]
fn a_refused_binding_is_a_warning() {
    let t = Shrinking {
        looks: AtomicU32::new(10),
    };
    let request = SegmentRequest::new("q", 4096)
        .page(PageChoice::Ordinary)
        .node(Some(NodeId(0)));
    let s = Segment::map_on(&request, &t).unwrap();
    assert_eq!(s.node(), None);
    assert_eq!(
        s.warnings(),
        ["\"q\" is not bound to node 0: mbind: Operation not permitted"]
    );
    let pool = Pool::new_on(
        &PoolConfig::new("p", 8)
            .page(PageChoice::Ordinary)
            .node(Some(NodeId(0))),
        &t,
    )
    .unwrap();
    assert_eq!(pool.warnings().len(), 2, "data and metadata");
    assert_eq!(pool.node(), Some(NodeId(0)));
}

#[test]
fn a_pool_that_fails_half_way_leaves_nothing() {
    let files = || {
        let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let links = open.filter_map(|f| std::fs::read_link(f.path()).ok());
        links
            .filter(|l| l.to_string_lossy().contains("half-way"))
            .count()
    };
    let maps = || {
        let text = std::fs::read_to_string("/proc/self/maps").unwrap();
        text.matches("half-way").count()
    };
    // One look for the whole, then one per chunk, then one for the metadata.
    for looks in 1..=5 {
        let t = Shrinking {
            looks: AtomicU32::new(looks),
        };
        let config = PoolConfig::new("half-way", 100)
            .page(PageChoice::Ordinary)
            .chunks(3);
        let e = Pool::new_on(&config, &t).unwrap_err();
        assert!(
            matches!(e, MemoryError::OutOfMemory { free: 0, .. }),
            "{looks}: {e}"
        );
        assert_eq!((files(), maps()), (0, 0), "after {looks} looks");
    }
    // And the next run succeeds.
    let t = Shrinking {
        looks: AtomicU32::new(100),
    };
    let config = PoolConfig::new("half-way", 100).page(PageChoice::Ordinary);
    assert!(Pool::new_on(&config.chunks(3), &t).is_ok());
}

#[test]
fn this_machine_places_memory_where_it_is_told() {
    let t = topology::current();
    assert!(t.is_this_system());
    let nodes = t.nodes();
    assert!(!nodes.is_empty());
    let cpu = lcore::allowed_cpus()[0];
    let near = t.home(t.node_of_cpu(cpu));
    assert!(nodes.contains(&near));
    let s = Segment::map(
        &SegmentRequest::new("near", 1 << 16)
            .page(PageChoice::Ordinary)
            .node(Some(near)),
    )
    .unwrap();
    // Bound, or (in a container) a warning that says why not.
    match s.node() {
        Some(node) => assert_eq!((node, s.warnings().len()), (near, 0)),
        None => assert!(s.warnings()[0].contains("is not bound to node"), "{s:?}"),
    }
    let none = NodeId(nodes.iter().map(|n| n.0).max().unwrap() + 1);
    let e = Segment::map(&SegmentRequest::new("far", 4096).node(Some(none))).unwrap_err();
    assert!(matches!(e, MemoryError::NoSuchNode { .. }), "{e}");
}

/// With hugepages reserved (or an overcommit of them) this maps some; without, it must
/// fail by message.
#[test]
fn hugepages_are_mapped_or_refused_never_a_signal() {
    let t = topology::current();
    let request = SegmentRequest::new("huge", 3 << 20).page(PageChoice::Huge2M);
    let free = t.hugepages(PageSize::HUGE_2M, None).map_or(0, |c| c.free);
    match Segment::map(&request) {
        Ok(s) => {
            assert_eq!((s.len(), s.page_size()), (4 << 20, PageSize::HUGE_2M));
            assert_eq!(s.address() % (2 << 20), 0);
            s.whole().fill(0, s.len(), 0x5a).unwrap();
            assert_eq!(s.whole().to_vec(s.len() - 2, 2).unwrap(), [0x5a; 2]);
            let fd = s.fd().unwrap().try_clone_to_owned().unwrap();
            let other = Segment::from_fd(fd, 2 << 20, 4096).unwrap();
            assert_eq!(other.page_size(), PageSize::HUGE_2M);
            assert_eq!(other.whole().to_vec(0, 1).unwrap(), [0x5a]);
            let fd = s.fd().unwrap().try_clone_to_owned().unwrap();
            assert!(
                Segment::from_fd(fd, 4096, 4096).is_err(),
                "not a whole page"
            );
        }
        Err(e) => {
            assert!(free < 2, "{free} were free: {e}");
            assert!(e.to_string().contains("huge: "), "{e}");
        }
    }
}

#[test]
fn a_cpu_outside_the_set_is_named_with_the_set() {
    let e = lcore::pin(100_000).unwrap_err();
    let MemoryError::CpuNotAllowed { cpu, allowed, .. } = &e else {
        panic!("{e}");
    };
    assert_eq!(*cpu, 100_000);
    assert!(e.to_string().contains(allowed.as_str()));
    assert!(allowed.starts_with(&lcore::allowed_cpus()[0].to_string()));
}

#[test]
fn a_pinned_lcore_runs_there_and_leaves_its_slot() {
    let cpu = *lcore::allowed_cpus().last().unwrap();
    std::thread::scope(|s| {
        s.spawn(|| {
            let guard = Lcore::register_on(cpu).unwrap();
            assert_eq!(guard.cpu(), Some(cpu));
            assert_eq!(lcore::affinity(), [cpu]);
            assert_eq!(Lcore::current(), Some(guard.slot()));
            let e = Lcore::register().unwrap_err();
            assert!(e.to_string().contains("registered already"), "{e}");
            drop(guard);
            assert_eq!(Lcore::current(), None);
            Lcore::register().unwrap();
        });
    });
    // The set that messages name is the one before pinning.
    assert!(lcore::allowed_cpus().contains(&cpu));
}

#[cfg(feature = "hwloc")]
mod synthetic {
    use pollux_mempool::topology::HwlocTopology;

    use super::*;

    fn machine() -> HwlocTopology {
        HwlocTopology::synthetic("NUMANode:2 Package:1 Core:4 PU:2").unwrap()
    }

    #[test]
    fn nodes_and_their_cpus() {
        let t = machine();
        assert!(!t.is_this_system());
        assert_eq!(t.nodes(), [NodeId(0), NodeId(1)]);
        assert_eq!(t.cpus_of_node(NodeId(0)), (0..8).collect::<Vec<_>>());
        assert_eq!(t.cpus_of_node(NodeId(1)), (8..16).collect::<Vec<_>>());
        assert_eq!(t.node_of_cpu(7), Some(NodeId(0)));
        assert_eq!(t.node_of_cpu(8), Some(NodeId(1)));
        assert_eq!(t.node_of_cpu(16), None);
        assert_eq!(t.node_of_pci("0000:3b:00.0"), None);
        assert_eq!(t.home(Some(NodeId(1))), NodeId(1));
        assert_eq!(t.home(None), NodeId(0));
        assert!(HwlocTopology::synthetic("nonsense").is_err());
    }

    #[test]
    fn pools_of_two_nodes_never_mix() {
        let t = machine();
        let pools: Vec<Pool> = t
            .nodes()
            .into_iter()
            .map(|node| {
                let config = PoolConfig::new(format!("node {node}"), 64)
                    .page(PageChoice::Ordinary)
                    .node(Some(node))
                    .cache(16);
                Pool::new_on(&config, &t).unwrap()
            })
            .collect();
        let _lcore = Lcore::register().unwrap();
        let mut held = Vec::new();
        for round in 0..10 {
            for (node, pool) in (0u32..).zip(&pools) {
                assert_eq!(pool.node(), Some(NodeId(node)));
                assert!(pool.chunks().iter().all(|c| c.node() == Some(NodeId(node))));
                for _ in 0..30 {
                    // Wherever a buffer was freed, it is never handed out for the other
                    // node.
                    let m = pool.alloc().unwrap();
                    assert_eq!(m.pool_id(), pool.id());
                    held.push(m);
                }
            }
            let mid = held.len() / 2;
            held.rotate_left(mid * (round % 2));
            held.clear();
        }
        assert!(pools.iter().all(|p| p.check().is_ok()));
    }

    #[test]
    fn a_node_that_is_too_small_is_named() {
        let t = HwlocTopology::synthetic("NUMANode:2(memory=1048576) Core:1 PU:1").unwrap();
        let config = PoolConfig::new("p", 1000)
            .page(PageChoice::Ordinary)
            .node(Some(NodeId(1)));
        let e = Pool::new_on(&config, &t).unwrap_err();
        assert!(
            matches!(
                e,
                MemoryError::OutOfMemory {
                    free: 1_048_576,
                    node: Some(NodeId(1)),
                    ..
                }
            ),
            "{e}"
        );
    }

    #[test]
    fn hwloc_and_the_kernels_files_agree_on_this_machine() {
        let hwloc = HwlocTopology::this_system().unwrap();
        let files = SysfsTopology::this_system();
        assert_eq!(hwloc.nodes(), files.nodes());
        for node in hwloc.nodes() {
            assert_eq!(hwloc.cpus_of_node(node), files.cpus_of_node(node));
        }
    }
}
