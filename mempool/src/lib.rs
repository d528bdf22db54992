//! Mapped memory, hugepages, NUMA placement, rings, pools and packet buffers.
