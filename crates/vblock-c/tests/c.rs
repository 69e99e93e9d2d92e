//! A C program uses the library against a real server, which is replaced meanwhile.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use ring3_block::Format;
use ring3_vblock::{Access, DeviceOptions, Server};

fn server(directory: &Path) -> Arc<Server> {
    let server = Arc::new(Server::default());
    for (name, len) in [("disk", 4 << 20), ("other", 1 << 20)] {
        let file = directory.join(name);
        if !file.exists() {
            File::create(&file).unwrap().set_len(len).unwrap();
        }
        let format = Some(Format::Raw);
        let options = DeviceOptions { file, format, read_only: false, no_external_files: false };
        server.add_device(name, &options).unwrap();
    }
    server.grant("c", "disk", Access::ReadWrite, None).unwrap();
    server.start_lobby("c", &directory.join("socket")).unwrap();
    server
}

/// Compiles the program with all warnings, for the given standard, with the library as `library` says.
fn compile(directory: &Path, standard: &str, library: &[&str]) -> PathBuf {
    let program = directory.join("program");
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let libraries = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror", "-g", standard, "-I"]);
    cc.arg(here.join("include")).arg("-o").arg(&program).arg(here.join("tests/program.c"));
    cc.arg("-L").arg(&libraries).arg(format!("-Wl,-rpath,{}", libraries.display()));
    let output = cc.args(library).output().expect("there is a C compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

#[test]
fn a_c_program_uses_the_disks_of_a_server() {
    let shared = ["-lring3vblock"];
    let alone = ["-l:libring3vblock.a", "-lpthread", "-ldl", "-lm"];
    for (standard, library) in [("-std=c99", &shared[..]), ("-std=gnu17", &alone)] {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path();
        let mut server = server(place);
        let program = compile(place, standard, library);
        let mut program = Command::new(program)
            .env("VBLOCK_SOCKET", place.join("socket"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = program.stdin.take().unwrap();
        for line in BufReader::new(program.stdout.take().unwrap()).lines() {
            match line.unwrap().as_str() {
                "one disk" => server.grant("c", "other", Access::Read, None).unwrap(),
                "two disks" => server.resize_device("other", 2 << 20, false).unwrap(),
                "resized" => {
                    drop(server);
                    server = self::server(place);
                }
                "gone" => {}
                "done" => break,
                other => panic!("{other}"),
            }
            input.write_all(b"\n").unwrap();
        }
        assert!(program.wait().unwrap().success());
        drop(server);
    }
}
