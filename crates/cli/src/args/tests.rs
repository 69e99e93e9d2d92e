use super::*;

fn parse(arguments: &[&str]) -> Result<RunArguments, clap::Error> {
    let all = ["ring3", "run"].iter().chain(arguments);
    Arguments::try_parse_from(all).map(|arguments| match arguments.command {
        Command::Run(run) => *run,
        _ => panic!("not asked for"),
    })
}

#[test]
fn the_definition_is_sound() {
    Arguments::command().debug_assert();
}

#[test]
fn sizes_are_read() {
    let size = |text: &str| text.parse::<MemorySize>().map(|size| size.bytes);
    assert_eq!(size("128M"), Ok(128 << 20));
    assert_eq!(size("1g"), Ok(1 << 30));
    assert_eq!(size("64"), Ok(64 << 20));
    assert_eq!(size("1"), Ok(1 << 20));
    assert_eq!(size("32G"), Ok(32 << 30));
    for same in ["64M", "64m", "64MB", "64MiB", "64mb", "65536K", "65536k"] {
        assert_eq!(size(same), Ok(64 << 20), "{same}");
    }
    assert_eq!(size("2GiB"), Ok(2 << 30));
    for bad in ["", "M", "G", "-1", "+1", "1.5G", "1X", "1MM", "1 M", "0x10", "１"] {
        assert_eq!(size(bad), Err(BadMemorySize::Unreadable), "{bad:?}");
    }
    for bad in [
        "1K",
        "1025K",
        "1t",
        "0",
        "0M",
        "32769",
        "33G",
        "99999999999999999999",
        "18446744073709551615M",
    ] {
        assert_eq!(size(bad), Err(BadMemorySize::OutOfBounds), "{bad:?}");
    }
}

#[test]
fn qmp_targets_are_read() {
    assert_eq!("stdio".parse(), Ok(QmpTarget::Stdio));
    assert_eq!("unix:a:b".parse(), Ok(QmpTarget::Socket("a:b".into())));
    for bad in ["", "stdio:", "unix", "unix:", "tcp:1", "/path"] {
        assert_eq!(bad.parse::<QmpTarget>(), Err(BadQmpTarget), "{bad:?}");
    }
}

#[test]
fn standard_input_has_one_user() {
    let both = parse(&["--kernel", "k", "--qmp", "stdio"]).unwrap();
    assert!(both.check().unwrap_err().to_string().contains("--serial"));
    let apart = parse(&["--kernel", "k", "--qmp", "stdio", "--serial", "file:s"]).unwrap();
    assert!(apart.check().is_ok());
    assert!(parse(&["--kernel", "k", "--qmp", "unix:s"]).unwrap().check().is_ok());
}

#[test]
fn there_are_up_to_four_serial_ports() {
    let ports = |count| parse(&vec!["--serial=null"; count]).unwrap();
    assert_eq!(ports(4).serial_targets().len(), 4);
    assert!(ports(4).check().is_ok());
    assert!(ports(5).check().unwrap_err().to_string().contains("at most four"));
    let twice = parse(&["--serial=stdio", "--serial=stdio"]).unwrap();
    assert!(twice.check().unwrap_err().to_string().contains("twice"));
    let screen = parse(&["--display=terminal"]).unwrap();
    assert_eq!(screen.serial_targets(), [SerialTarget::Null]);
    assert!(screen.check().is_ok());
    assert!(parse(&["--display=terminal", "--serial=stdio"]).unwrap().check().is_err());
    assert_eq!(parse(&["--serial=none"]).unwrap().serial_targets(), []);
    assert!(parse(&["--serial=none", "--serial=null"]).unwrap().check().is_err());
}

#[test]
fn networks_go_with_recordings() {
    let nics = |count| parse(&vec!["--nic=user"; count]).unwrap();
    assert!(nics(8).check().is_ok());
    assert!(nics(9).check().unwrap_err().to_string().contains("at most eight"));
    assert!(parse(&["--nic=none"]).unwrap().check().is_ok());
    assert!(parse(&["--nic=none", "--nic=user"]).unwrap().check().is_err());
    let error = parse(&["--nic=user", "--deterministic"]).unwrap().check().unwrap_err();
    assert!(error.to_string().contains("--record"));
    for kept in ["--record=file", "--verify"] {
        assert!(parse(&["--nic=user", "--deterministic", kept]).unwrap().check().is_ok());
    }
}

#[test]
fn ports_are_read() {
    assert_eq!(port("0xf4"), Ok(0xf4));
    assert_eq!(port("1281"), Ok(0x501));
    for bad in ["", "0x", "f4", "-1", "+1", "0x+1", "65533", "0x10000"] {
        assert_eq!(port(bad), Err(BadPort), "{bad}");
    }
}

#[test]
fn an_unknown_engine_is_refused_with_a_list() {
    let error = parse(&["--engine", "kvm"]).unwrap_err().to_string();
    assert!(error.contains("translator") && error.contains("interpreter"), "{error}");
}

#[test]
fn defaults_and_spellings() {
    let run = parse(&["--kernel", "k"]).unwrap();
    assert_eq!(run.memory.bytes, 128 << 20);
    assert_eq!(run.cpu, None);
    assert_eq!(run.serial_targets(), [SerialTarget::Stdio]);
    assert_eq!((run.display, run.rtc), (DisplayTarget::None, None));
    assert_eq!((run.append.as_str(), run.stats, run.qmp), ("", false, None));
    assert_eq!(parse(&["--kernel", "k", "--cpu", "486"]).unwrap().cpu, Some(Model::I486));
    let run = parse(&["--kernel=k", "-m2G", "--append", "-x y", "--stats"]).unwrap();
    assert_eq!((run.memory.bytes, run.append.as_str(), run.stats), (2 << 30, "-x y", true));
}

#[test]
fn debug_targets_are_read() {
    assert_eq!("log".parse(), Ok(DebugTarget::Log));
    assert_eq!("stdio".parse(), Ok(DebugTarget::Stdio));
    assert_eq!("file:a".parse(), Ok(DebugTarget::File("a".into())));
    for bad in ["", "file:", "LOG", "stdout"] {
        assert_eq!(bad.parse::<DebugTarget>(), Err(BadDebugTarget), "{bad:?}");
    }
}

#[test]
fn options_for_a_kernel_need_a_kernel() {
    use clap::error::ErrorKind;

    assert_eq!(parse(&[]).unwrap().kernel, None);
    // Firmware can start a kernel, too.
    assert!(parse(&["--kernel", "k", "--bios", "b"]).unwrap().check().is_ok());
    for alone in [["--initrd", "i"], ["--append", "x"]] {
        let error = parse(&alone).unwrap().check().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::MissingRequiredArgument);
        assert!(error.to_string().contains("--kernel FILE"));
    }
}
