//! The program as its user runs it: options, files, signals, sockets, exit statuses.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failed step fails the test

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pollux_bus::vfio_user;
use pollux_mempool::PageChoice;
use pollux_mlx5::{OpenOptions, Port};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_pollux-hca"))
}

/// A folder that is gone with the test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("pollux-hca-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// A program that serves; killed when dropped.
struct Running {
    child: Child,
    out: BufReader<ChildStdout>,
    banner: Vec<String>,
}

impl Running {
    /// Starts it, and waits until it says that it is ready.
    fn start(arguments: &[&str]) -> Self {
        let mut child = program()
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut banner = Vec::new();
        loop {
            let mut line = String::new();
            assert_ne!(out.read_line(&mut line).unwrap(), 0, "it ended: {banner:?}");
            if line == "ready\n" {
                break;
            }
            banner.push(line.trim_end().to_owned());
        }
        Self { child, out, banner }
    }

    /// Ends it by a signal: status, what it still printed, what it complained of.
    fn end(mut self, signal: Signal) -> (i32, String, String) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
        let (mut out, mut errors) = (String::new(), String::new());
        self.out.read_to_string(&mut out).unwrap();
        let mut stderr = self.child.stderr.take().unwrap();
        stderr.read_to_string(&mut errors).unwrap();
        (self.child.wait().unwrap().code().unwrap(), out, errors)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Killing one that has ended is an error that changes nothing.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn run(arguments: &[&str]) -> Output {
    program().args(arguments).output().unwrap()
}

/// Asks a line through the control socket by the program itself.
fn ask(control: &Path, line: &str) -> Result<String, String> {
    let output = run(&["--control", text(control), "--ask", line]);
    let said = |bytes: &[u8]| {
        String::from_utf8(bytes.to_vec())
            .unwrap()
            .trim_end()
            .to_owned()
    };
    match output.status.code() {
        Some(0) => Ok(said(&output.stdout)),
        Some(1) => Err(said(&output.stderr)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn bad_input_is_one_line_and_status_2() {
    let folder = Folder::new();
    let socket = folder.file("a.sock");
    let socket = text(&socket);
    let toml = folder.file("bad.toml");
    std::fs::write(&toml, "socket = [\"x\"]\nsokcet = 3\n").unwrap();
    let device = folder.file("device.toml");
    std::fs::write(
        &device,
        "socket = [\"x\"]\n\n[device]\nmodel = \"cx5\"\n  wrie = \"null\"\n",
    )
    .unwrap();
    let value = folder.file("value.toml");
    std::fs::write(
        &value,
        "socket = [\"x\"]\nmode = \"8\"\n[device]\nmodel = \"cx3\"\n",
    )
    .unwrap();
    let (toml, device, value) = (text(&toml), text(&device), text(&value));
    for (arguments, parts) in [
        (vec![], vec!["--socket"]),
        (vec!["--sokcet", "x"], vec!["--sokcet", "--socket"]),
        (vec!["--socket"], vec!["--socket", "value"]),
        (
            vec!["--socket", socket, "--device", "model=cx3"],
            vec!["cx3", "cx4lx"],
        ),
        (
            vec!["--socket", socket, "--device", "modle=cx5"],
            vec!["modle", "model"],
        ),
        (
            vec!["--socket", socket, "--device", "model"],
            vec!["--device", "KEY=VALUE"],
        ),
        (
            vec!["--socket", socket, "--device", "ports=2"],
            vec!["ports=2", "1 socket"],
        ),
        (
            vec!["--socket", socket, "--mode", "999"],
            vec!["999", "octal"],
        ),
        (
            vec!["--socket", socket, "--mode", "066"],
            vec!["066", "600"],
        ),
        (
            vec!["--socket", socket, "--log-level", "all=of=it"],
            vec!["all=of=it", "info"],
        ),
        (
            vec!["--socket", socket, "--fault", "link 7 down"],
            vec!["link 7 down", "function 7"],
        ),
        (vec!["--ask", "report 0"], vec!["--control"]),
        (
            vec!["--config", "/no/such.toml"],
            vec!["/no/such.toml", "readable"],
        ),
        (vec!["--config", toml], vec!["bad.toml:2:1:", "sokcet"]),
        (vec!["--config", device], vec!["device.toml:5:3:", "wrie"]),
        (vec!["--config", value], vec!["value.toml:2:8:", "octal"]),
        (
            vec!["--config", value, "--mode", "600"],
            vec!["value.toml:4:1:", "cx3"],
        ),
    ] {
        let output = run(&arguments);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
        assert!(errors.starts_with("pollux-hca: "), "{errors}");
        for part in parts {
            assert!(errors.contains(part), "{arguments:?}: {errors}");
        }
        assert!(!Path::new(socket).exists());
    }
}

#[test]
fn help_and_version_are_for_reading() {
    for argument in ["--help", "--version"] {
        let output = run(&[argument]);
        assert_eq!(output.status.code(), Some(0));
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("pollux-hca"), "{text}");
        assert!(output.stderr.is_empty());
    }
}

#[test]
fn sockets_come_and_go_with_the_program() {
    let folder = Folder::new();
    let (a, b, control) = (folder.file("a"), folder.file("b"), folder.file("control"));
    // Left by one that was killed.
    drop(UnixListener::bind(&a).unwrap());
    let arguments = [
        "--socket",
        text(&a),
        "--socket",
        text(&b),
        "--control",
        text(&control),
        "--mode",
        "660",
        "--device",
        "model=cx6dx,mac1=02:00:00:00:00:77",
    ];
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let running = Running::start(&arguments);
        assert_eq!(running.banner.len(), 2);
        for (line, parts) in running.banner.iter().zip([
            ["EMULATED", "15b3:101d", text(&a)],
            ["EMULATED", "02:00:00:00:00:77", text(&b)],
        ]) {
            assert!(parts.iter().all(|part| line.contains(part)), "{line}");
        }
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&a), mode(&b), mode(&control)), (0o660, 0o660, 0o600));
        // A second program does not take them away.
        let output = run(&["--socket", text(&a)]);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(errors.contains("served by another process"), "{errors}");
        let (status, out, errors) = running.end(signal);
        assert_eq!((status, errors.as_str()), (0, ""));
        assert_eq!(out.lines().count(), 2, "{out}");
        assert!(out.contains("left: 0 pages, 0 objects"), "{out}");
        assert!(![&a, &b, &control].iter().any(|path| path.exists()));
    }
}

#[test]
fn all_sockets_or_none() {
    let folder = Folder::new();
    let (a, b) = (folder.file("a"), folder.file("b"));
    std::fs::write(&b, "precious").unwrap();
    let output = run(&["--socket", text(&a), "--socket", text(&b)]);
    assert_eq!(output.status.code(), Some(1));
    assert!(!a.exists());
    assert_eq!(std::fs::read_to_string(&b).unwrap(), "precious");
}

#[test]
fn a_file_says_the_same_and_the_command_line_wins() {
    let folder = Folder::new();
    let (a, b) = (folder.file("a"), folder.file("b"));
    let commands = folder.file("commands");
    let config = folder.file("hca.toml");
    let lines = format!(
        "socket = [{a:?}, {b:?}]\nmode = \"666\"\nlog-commands = {commands:?}\n[device]\nmodel = \"cx4lx\"\nvectors1 = 5\nstrict = false\n"
    );
    std::fs::write(&config, lines).unwrap();
    let running = Running::start(&["--config", text(&config)]);
    assert_eq!(
        std::fs::metadata(&a).unwrap().permissions().mode() & 0o777,
        0o666
    );
    let function = vfio_user::connect(&b).unwrap();
    assert_eq!(
        (function.identity().device, function.vectors()),
        (0x1015, 5)
    );
    drop(function);
    assert!(commands.exists());
    assert_eq!(running.end(Signal::SIGTERM).0, 0);
    let running = Running::start(&[
        "--config",
        text(&config),
        "--device",
        "model=cx7",
        "--mode",
        "600",
    ]);
    assert_eq!(
        std::fs::metadata(&a).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let function = vfio_user::connect(&b).unwrap();
    assert_eq!(
        (function.identity().device, function.vectors()),
        (0x1021, 32)
    );
    drop(running);
}

#[test]
fn a_driver_comes_works_and_goes_and_the_log_tells() {
    let folder = Folder::new();
    let (socket, control, log) = (folder.file("s"), folder.file("c"), folder.file("log"));
    let running = Running::start(&[
        "--socket",
        text(&socket),
        "--control",
        text(&control),
        "--log-commands",
        text(&log),
    ]);
    let value = |report: &str, key: &str| -> u64 {
        let mut pairs = report.split(' ').filter_map(|pair| pair.split_once('='));
        pairs
            .find(|(name, _)| *name == key)
            .unwrap()
            .1
            .parse()
            .unwrap()
    };
    for round in 0..2 {
        let options = OpenOptions {
            pages: PageChoice::Ordinary,
            ..OpenOptions::default()
        };
        let port = Port::open(vfio_user::connect(&socket).unwrap(), options).unwrap();
        let report = ask(&control, "report 0").unwrap();
        assert_eq!(value(&report, "connected"), 1, "{report}");
        assert!(value(&report, "pages") > 0, "{report}");
        if round == 0 {
            port.close().unwrap();
        } else {
            // As when a program dies: nothing is closed.
            std::mem::forget(port);
            break;
        }
        let report = ask(&control, "report 0").unwrap();
        let left = ["connected", "pages", "objects", "undelivered"].map(|key| value(&report, key));
        assert_eq!(left, [0; 4], "{report}");
    }
    let (status, out, _) = running.end(Signal::SIGTERM);
    assert_eq!(status, 0);
    // What the second one held is told at the end.
    assert!(!out.contains("left: 0 pages"), "{out}");
    let log = std::fs::read_to_string(&log).unwrap();
    assert!(
        log.lines()
            .all(|line| line.starts_with("emu0 ") && line.contains(" status=OK")),
        "{log}"
    );
    let names: Vec<&str> = log
        .lines()
        .filter_map(|line| line.split(' ').nth(1))
        .collect();
    assert_eq!(names.first(), Some(&"ENABLE_HCA"));
    assert_eq!(names.iter().filter(|name| **name == "INIT_HCA").count(), 2);
    assert_eq!(
        names.iter().filter(|name| **name == "DISABLE_HCA").count(),
        1
    );
}

#[test]
fn scripts_ask_and_order_faults() {
    let folder = Folder::new();
    let (socket, control) = (folder.file("s"), folder.file("c"));
    let _running = Running::start(&[
        "--socket",
        text(&socket),
        "--control",
        text(&control),
        "--fault",
        "arm 0 all drop-event",
        "--fault",
        "link 0 down",
    ]);
    assert_eq!(ask(&control, "armed 0").unwrap(), "1");
    assert!(ask(&control, "wire 0").unwrap().ends_with(" up=0"));
    assert_eq!(ask(&control, "disarm 0").unwrap(), "ok");
    assert_eq!(ask(&control, "functions").unwrap(), "1");
    assert_eq!(ask(&control, "mac 0").unwrap(), "02:15:b3:00:00:00");
    assert!(ask(&control, "wire 0").unwrap().starts_with("in=0 out=0 "));
    assert_eq!(
        ask(&control, "arm 0 opcode:0x104:1 fail:3:0xbeef").unwrap(),
        "ok"
    );
    assert_eq!(ask(&control, "armed 0").unwrap(), "1");
    let options = OpenOptions {
        pages: PageChoice::Ordinary,
        ..OpenOptions::default()
    };
    let error = Port::open(vfio_user::connect(&socket).unwrap(), options)
        .err()
        .unwrap();
    assert!(error.to_string().contains("0xbeef"), "{error}");
    assert_eq!(ask(&control, "armed 0").unwrap(), "0");
    assert_eq!(ask(&control, "kill 0").unwrap(), "ok");
    let function = vfio_user::connect(&socket).unwrap();
    assert_eq!(
        function.registers(0, 4).unwrap().load_u32(0).unwrap(),
        u32::MAX
    );
    assert_eq!(ask(&control, "revive 0").unwrap(), "ok");
    assert_ne!(
        function.registers(0, 4).unwrap().load_u32(0).unwrap(),
        u32::MAX
    );
    for (line, part) in [
        ("", "verb"),
        ("report", "number of a function"),
        ("report 1", "1"),
        ("report 0 0", "too much"),
        ("report x", "no number"),
        ("reprot 0", "report"),
        ("arm 0 never fail:1:2", "trigger"),
        ("arm 0 all fail:1", "fault"),
        ("arm 0 all fail:256:0", "no number"),
        ("link 0 sideways", "up or down"),
        ("demand 0 give", "number of pages"),
        ("demand 0 eat 3", "give, take"),
        ("corrupt 0 1 0 64 1", "64"),
        ("doorbells 0 99 1", "does not exist"),
    ] {
        let error = ask(&control, line).unwrap_err();
        assert!(error.contains(part), "{line}: {error}");
    }
    assert!(ask(&control, "help").unwrap().contains("demand N give"));
    // One that sends rubbish, or nothing, is no hindrance.
    drop(UnixStream::connect(&control).unwrap());
    let mut rubbish = UnixStream::connect(&control).unwrap();
    std::io::Write::write_all(&mut rubbish, &[0xff; 5000]).unwrap();
    drop(rubbish);
    assert_eq!(ask(&control, "functions").unwrap(), "1");
}

#[test]
fn nobody_to_ask_is_said() {
    let folder = Folder::new();
    let error = ask(&folder.file("nobody"), "functions").unwrap_err();
    assert!(error.contains("nobody"), "{error}");
}

/// The sample file and the README are as good as what they promise.
#[test]
fn the_sample_and_the_readme_hold() {
    let folder = Folder::new();
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sample = std::fs::read_to_string(here.join("hca.toml")).unwrap();
    let config = folder.file("hca.toml");
    std::fs::write(&config, &sample).unwrap();
    let mut child = program()
        .current_dir(&folder.0)
        .args(["--config", "hca.toml"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    let mut lines = out.lines().map(Result::unwrap);
    assert!(lines.by_ref().any(|line| line == "ready"));
    let readme = std::fs::read_to_string(here.join("README.md")).unwrap();
    let asked: Vec<&str> = readme
        .lines()
        .filter_map(|line| line.strip_prefix("pollux-hca --control hca.ctl --ask "))
        .map(|rest| rest.split(" #").next().unwrap().trim().trim_matches('\''))
        .collect();
    assert!(asked.len() >= 7, "{asked:?}");
    for line in asked {
        ask(&folder.file("hca.ctl"), line).unwrap();
    }
    let help = String::from_utf8(run(&["--help"]).stdout).unwrap();
    let options = help
        .lines()
        .filter_map(|line| line.trim().strip_prefix("--"));
    for option in options {
        let name = option.split(' ').next().unwrap();
        assert!(readme.contains(&format!("`--{name}")), "--{name}");
    }
    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_client_that_sends_rubbish_does_not_fill_the_log() {
    let folder = Folder::new();
    let socket = folder.file("s");
    let running = Running::start(&["--socket", text(&socket)]);
    for _ in 0..2 {
        let mut client = UnixStream::connect(&socket).unwrap();
        let message = |command: u16, size: u32, body: &[u8]| {
            let parts = [
                &[0, 0][..],
                &command.to_ne_bytes(),
                &size.to_ne_bytes(),
                &[0; 8],
            ];
            [&parts.concat(), body].concat()
        };
        let mut bytes = message(1, 20, &[0; 4]);
        for _ in 0..200 {
            bytes.extend(message(99, 16, &[]));
        }
        std::io::Write::write_all(&mut client, &bytes).unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answers = Vec::new();
        client.read_to_end(&mut answers).unwrap();
        assert!(answers.len() > 200 * 16, "{}", answers.len());
    }
    let (status, _, errors) = running.end(Signal::SIGTERM);
    assert_eq!(status, 0);
    assert_eq!(errors.lines().count(), 2 * 16, "{errors}");
    assert!(errors.contains("command 99 is not served"), "{errors}");
}
