//! Options before `--`: cores, memory, devices.

use clap::Args;

use super::cpu_list::CpuList;

/// The options.
#[derive(Args, Clone, Default, Debug)]
pub struct EalOptions {
    /// CPUs to use: the first (or --main-lcore) runs the shell, the others forward; a single one does both
    #[arg(short = 'l', long = "lcores", value_name = "LIST")]
    pub lcores: Option<CpuList>,
    /// Which CPU of -l runs the shell [default: the first]
    #[arg(long, value_name = "CPU")]
    pub main_lcore: Option<usize>,
    /// Device: emu:ports=2,wire=pair | vfio-user:PATH | a PCI address; may be repeated [default: emu:]
    #[arg(short = 'a', long = "allow", value_name = "DEVICE")]
    pub allow: Vec<String>,
    /// Use ordinary pages, no hugepages
    #[arg(long)]
    pub no_huge: bool,
    /// What to log on standard error: error, warn, info, debug, or a filter as `pollux_mlx5=debug`
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<String>,
    /// Accepted for DPDK's users, without meaning here: buffers are not spread over memory channels
    #[arg(short = 'n', long, value_name = "N")]
    pub memory_channels: Option<u32>,
    /// Accepted for DPDK's users, without meaning here: no file is created that would need a name
    #[arg(long, value_name = "NAME")]
    pub file_prefix: Option<String>,
    /// Accepted for DPDK's users: memory never has files here
    #[arg(long)]
    pub in_memory: bool,
    /// Do not look for PCI adapters; a device of another kind is used
    #[arg(long)]
    pub no_pci: bool,
    /// Most memory for buffers, in MiB, per NUMA node (0 or absent: no limit)
    #[arg(
        long,
        visible_alias = "numa-mem",
        value_name = "MIB[,MIB...]",
        value_delimiter = ','
    )]
    pub socket_mem: Vec<u64>,
}
