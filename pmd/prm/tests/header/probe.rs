//! Questions to a C compiler: where a field stands, how large a structure is, what a constant is.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The texts of the headers, and where they are.
pub struct Headers {
    kernel: PathBuf,
    /// Major and minor.
    version: (u32, u32),
    /// `mlx5_ifc.h` and `device.h`: included whole.
    whole: String,
    /// Headers that include half a kernel: single definitions are taken out of them.
    parts: String,
    rdma: String,
}

/// Which program answers a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    Kernel,
    Rdma,
}

/// The kernel whose headers name all that the layouts do. What an older one does not name is left
/// out of the comparison, and said.
const COMPLETE: (u32, u32) = (6, 12);

/// One question.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Probe {
    side: Side,
    /// C expressions for offset (or value) and width, both in bits.
    offset: String,
    bits: String,
    /// Definitions to take out of the other kernel headers.
    needs: Option<String>,
}

impl Headers {
    /// The newest installed kernel headers and rdma-core's, or what is missing.
    pub fn find() -> Result<Self, String> {
        if !Command::new("cc")
            .arg("--version")
            .output()
            .is_ok_and(|o| o.status.success())
        {
            return Err("there is no C compiler `cc`".into());
        }
        // Another folder of headers, to be compared with on purpose.
        let place = std::env::var("POLLUX_HEADERS").unwrap_or_else(|_| "/usr/src".into());
        let mut found: Vec<(Vec<u32>, PathBuf)> = std::fs::read_dir(&place)
            .map_err(|e| format!("{place}: {e}"))?
            .flatten()
            .filter(|e| {
                let name = e.file_name().to_string_lossy().into_owned();
                name.starts_with("linux-headers-") && name.ends_with("-common")
            })
            .map(|e| {
                let name = e.file_name().to_string_lossy().into_owned();
                let numbers = name.split(|c: char| !c.is_ascii_digit());
                (numbers.filter_map(|n| n.parse().ok()).collect(), e.path())
            })
            .map(|(version, path)| (version, path.join("include/linux/mlx5")))
            .filter(|(_, path)| path.join("mlx5_ifc.h").exists())
            .collect();
        found.sort();
        let Some((version, kernel)) = found.pop() else {
            return Err(format!(
                "no linux-headers-*-common with linux/mlx5 under {place}"
            ));
        };
        let part = |at: usize| version.get(at).copied().unwrap_or(0);
        let read = |path: &Path| {
            std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
        };
        let read_all = |names: &[&str]| -> Result<String, String> {
            names.iter().map(|n| read(&kernel.join(n))).collect()
        };
        Ok(Self {
            whole: read_all(&["mlx5_ifc_fpga.h", "mlx5_ifc.h", "device.h"])?,
            parts: read_all(&[
                "driver.h",
                "qp.h",
                "cq.h",
                "doorbell.h",
                "port.h",
                "vport.h",
            ])?,
            rdma: read(Path::new("/usr/include/infiniband/mlx5dv.h"))?,
            version: (part(0), part(1)),
            kernel,
        })
    }

    /// Whether a name may be missing because the headers are older than it.
    pub fn are_old(&self) -> bool {
        self.version < COMPLETE
    }

    /// Whether the kernel has a structure or union of this tag.
    pub fn has(&self, tag: &str) -> bool {
        self.kind(tag).is_some()
    }

    fn kind(&self, tag: &str) -> Option<&'static str> {
        ["struct", "union"].into_iter().find(|kind| {
            let opening = format!("\n{kind} {tag} {{");
            self.whole.contains(&opening) || self.parts.contains(&opening)
        })
    }

    /// As [`kind`](Self::kind); a structure that is missing is a fault, or too new.
    fn expect(&self, tag: &str) -> &'static str {
        self.kind(tag).unwrap_or_else(|| {
            assert!(self.are_old(), "the headers have no {tag}");
            "struct"
        })
    }

    /// The definition that starts at a line, up to the line that closes it.
    fn definition(text: &str, start: usize) -> Option<&str> {
        let end = text[start..].find("\n}")?;
        let close = text[start + end..].find(';')?;
        Some(&text[start..start + end + close + 1])
    }

    /// A structure or the enumeration around a constant, out of the headers not included whole.
    fn take(&self, name: &str) -> Option<String> {
        for kind in ["struct", "union"] {
            if let Some(at) = self.parts.find(&format!("\n{kind} {name} {{")) {
                return Self::definition(&self.parts, at + 1).map(str::to_string);
            }
        }
        for (at, _) in self.parts.match_indices(name) {
            let line = self.parts[..at].rfind('\n').map_or(0, |n| n + 1);
            if self.parts[line..at].trim() == "#define" {
                let end = self.parts[at..].find('\n')?;
                return Some(self.parts[line..at + end].to_string());
            }
            let is_whole = |c: Option<char>| !c.is_some_and(|c| c.is_alphanumeric() || c == '_');
            if !self.parts[line..at].trim().is_empty()
                || !is_whole(self.parts[at + name.len()..].chars().next())
            {
                continue;
            }
            let start = self.parts[..at].rfind("\nenum ")?;
            let body = Self::definition(&self.parts, start + 1)?;
            // The tag is dropped, so that taking two of them cannot clash.
            return Some(format!("enum {}", &body[body.find('{')?..]));
        }
        None
    }
}

impl Probe {
    /// A field of a kernel structure.
    pub fn field(headers: &Headers, tag: &str, designator: &str) -> Self {
        let kind = headers.expect(tag);
        Self {
            side: Side::Kernel,
            needs: (!headers.whole.contains(&format!("\n{kind} {tag} {{")))
                .then(|| tag.to_string()),
            ..Self::of(&format!("{kind} {tag}"), designator)
        }
    }

    /// A field of an rdma-core structure.
    pub fn rdma_field(tag: &str, designator: &str) -> Self {
        Self {
            side: Side::Rdma,
            ..Self::of(&format!("struct {tag}"), designator)
        }
    }

    /// The size of a kernel structure.
    pub fn size(headers: &Headers, tag: &str) -> Self {
        let kind = headers.expect(tag);
        Self {
            side: Side::Kernel,
            offset: "0".into(),
            bits: format!("sizeof({kind} {tag}) * {}", Self::unit(tag)),
            needs: (!headers.whole.contains(&format!("\n{kind} {tag} {{")))
                .then(|| tag.to_string()),
        }
    }

    /// A constant of any of the headers.
    pub fn constant(headers: &Headers, name: &str) -> Self {
        let (side, needs) = if headers.whole.contains(name) {
            (Side::Kernel, None)
        } else if headers.take(name).is_some() {
            (Side::Kernel, Some(name.to_string()))
        } else if headers.rdma.contains(name) {
            (Side::Rdma, None)
        } else {
            assert!(headers.are_old(), "no header has {name}");
            (Side::Kernel, None)
        };
        Self {
            side,
            offset: name.into(),
            bits: "0".into(),
            needs,
        }
    }

    /// Any expression over the kernel's headers.
    pub fn expression(text: &str) -> Self {
        Self {
            side: Side::Kernel,
            offset: text.into(),
            bits: "0".into(),
            needs: None,
        }
    }

    /// In `mlx5_ifc.h` a byte stands for a bit.
    fn unit(tag: &str) -> usize {
        if tag.contains("mlx5_ifc_") { 1 } else { 8 }
    }

    fn of(c_type: &str, designator: &str) -> Self {
        let unit = Self::unit(c_type);
        Self {
            side: Side::Kernel,
            offset: format!("offsetof({c_type}, {designator}) * {unit}"),
            bits: format!("sizeof((({c_type} *)0)->{designator}) * {unit}"),
            needs: None,
        }
    }
}

/// The questions of one test, and the programs that answer them.
pub struct Program<'a> {
    headers: &'a Headers,
    probes: BTreeSet<Probe>,
}

/// What the kernel's headers expect of the kernel around them.
const SHIM: &str = r"
#include <stddef.h>
#include <stdint.h>
#include <stdbool.h>
#include <stdio.h>
#include <endian.h>
typedef uint8_t u8; typedef uint16_t u16; typedef uint32_t u32; typedef uint64_t u64;
typedef int32_t s32; typedef int64_t s64;
typedef uint16_t __be16; typedef uint32_t __be32; typedef uint64_t __be64;
typedef uint8_t __u8; typedef uint16_t __u16; typedef uint32_t __u32; typedef uint64_t __u64;
#define __packed __attribute__((packed))
#define __force
#define __iomem
#define BIT(n) (1UL << (n))
#define BIT_ULL(n) (1ULL << (n))
#define GENMASK(h, l) ((~0UL >> (63 - (h))) & (~0UL << (l)))
#define DECLARE_FLEX_ARRAY(T, N) struct { struct { } __empty_ ## N; T N[]; }
#define struct_group(NAME, ...) union { struct { __VA_ARGS__ }; struct { __VA_ARGS__ } NAME; }
#define be16_to_cpu be16toh
#define be32_to_cpu be32toh
#define be64_to_cpu be64toh
#define cpu_to_be16 htobe16
#define cpu_to_be32 htobe32
#define cpu_to_be64 htobe64
#define PAGE_SHIFT 12
#define PAGE_SIZE 4096
#define BITS_PER_LONG 64
struct ib_grh { u8 bytes[40]; };
struct mlx5_core_dev;
";

impl<'a> Program<'a> {
    pub fn new(headers: &'a Headers) -> Self {
        Self {
            headers,
            probes: BTreeSet::new(),
        }
    }

    pub fn ask(&mut self, probe: &Probe) {
        self.probes.insert(probe.clone());
    }

    /// Compiles and runs one program a side; the answers are offset (or value) and bits. A question
    /// about a name that is newer than the headers has none.
    pub fn run(&self) -> BTreeMap<Probe, (usize, usize)> {
        let mut answers = BTreeMap::new();
        for side in [Side::Kernel, Side::Rdma] {
            let mut probes: Vec<&Probe> = self.probes.iter().filter(|p| p.side == side).collect();
            if probes.is_empty() {
                continue;
            }
            let asked = probes.len();
            let printed = loop {
                match self.compile_and_run(side, &probes) {
                    Ok(printed) => break printed,
                    Err((bad, words)) => {
                        let known = !bad.is_empty() && self.headers.are_old();
                        assert!(known, "the program does not compile:\n{words}");
                        let mut at = 0..;
                        probes.retain(|_| !at.next().is_some_and(|at: usize| bad.contains(&at)));
                    }
                }
            };
            if probes.len() < asked {
                let (major, minor) = self.headers.version;
                eprintln!(
                    "NOT COMPARED: {} of {asked} names are newer than the headers of Linux {major}.{minor}",
                    asked - probes.len()
                );
                assert!(
                    probes.len() * 10 > asked * 8,
                    "too little is left to compare"
                );
            }
            let lines: Vec<&str> = printed.lines().collect();
            assert_eq!(lines.len(), probes.len(), "one answer to each question");
            for (probe, line) in probes.into_iter().zip(lines) {
                let (offset, bits) = line.split_once(' ').expect("two numbers");
                let answer = (
                    offset.parse().expect("a number"),
                    bits.parse().expect("a number"),
                );
                answers.insert(probe.clone(), answer);
            }
        }
        answers
    }

    /// What the program prints, or which questions the compiler does not understand, and its words.
    fn compile_and_run(
        &self,
        side: Side,
        probes: &[&Probe],
    ) -> Result<String, (BTreeSet<usize>, String)> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!(
            "header-{}-{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        ));
        std::fs::create_dir_all(&dir).expect("a directory for the program");
        let mut source = match side {
            Side::Kernel => {
                // Only these headers are the kernel's own; what they include is the shim.
                let shim = dir.join("linux/mlx5");
                std::fs::create_dir_all(&shim).expect("a directory");
                std::fs::create_dir_all(dir.join("rdma")).expect("a directory");
                for name in ["mlx5_ifc.h", "mlx5_ifc_fpga.h", "device.h"] {
                    std::os::unix::fs::symlink(self.headers.kernel.join(name), shim.join(name))
                        .expect("a link to a header");
                }
                for name in ["linux/types.h", "linux/bitfield.h", "rdma/ib_verbs.h"] {
                    std::fs::write(dir.join(name), "").expect("an empty header");
                }
                format!("{SHIM}#include <linux/mlx5/device.h>\n")
            }
            Side::Rdma => "#include <stdio.h>\n#include <infiniband/mlx5dv.h>\n".into(),
        };
        let needed: BTreeSet<&String> = probes.iter().filter_map(|p| p.needs.as_ref()).collect();
        let taken: BTreeSet<String> = needed
            .into_iter()
            .filter_map(|name| {
                let taken = self.headers.take(name);
                assert!(
                    taken.is_some() || self.headers.are_old(),
                    "no header has {name}"
                );
                taken
            })
            .collect();
        for definition in taken {
            source.push_str(&definition);
            source.push('\n');
        }
        source.push_str("int main(void) {\n");
        let first = source.lines().count() + 1;
        for probe in probes {
            source.push_str(&format!(
                "printf(\"%llu %llu\\n\", (unsigned long long)({}), (unsigned long long)({}));\n",
                probe.offset, probe.bits
            ));
        }
        source.push_str("return 0; }\n");
        let (c, program) = (dir.join("probe.c"), dir.join("probe"));
        std::fs::write(&c, source).expect("the program's text");
        let compiled = Command::new("cc")
            .args(["-std=gnu11", "-w", "-O0", "-I"])
            .arg(&dir)
            .arg(&c)
            .arg("-o")
            .arg(&program)
            .output()
            .expect("the C compiler runs");
        if !compiled.status.success() {
            std::fs::remove_dir_all(&dir).expect("the directory can go");
            let words = String::from_utf8_lossy(&compiled.stderr).into_owned();
            let bad = words
                .lines()
                .filter(|line| line.contains(": error: "))
                .filter_map(|line| {
                    line.split_once("probe.c:")?
                        .1
                        .split(':')
                        .next()?
                        .parse()
                        .ok()
                })
                .filter_map(|line: usize| line.checked_sub(first))
                .collect();
            return Err((bad, words));
        }
        let output = Command::new(&program).output().expect("the program runs");
        std::fs::remove_dir_all(&dir).expect("the directory can go");
        Ok(String::from_utf8(output.stdout).expect("text"))
    }
}
