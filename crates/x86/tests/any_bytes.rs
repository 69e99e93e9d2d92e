//! Runs any bytes in any state: whatever the guest does, the processor neither panics nor hangs.
//!
//! For other cases see the variables in `common/series.rs`. `make fuzz-bytes` searches for cases that execute
//! more of the code. The cases that it has found so far are in `fuzz/corpus`.

mod common;

use std::fs;
use std::path::Path;

use common::anything::{random_cpu, random_memory, run, run_bytes};
use common::series::Series;
use ring3_x86::interpreter::Interpreter;

const CASES: u64 = 300;

#[test]
fn any_bytes_in_any_state() {
    let series = Series::from_environment(CASES);
    for case in series.cases.clone() {
        let mut random = series.random(case);
        let mut memory = random_memory(&mut random);
        let mut cpu = random_cpu(&mut random);
        run(&mut Interpreter::new(), &mut random, &mut cpu, &mut memory);
    }
}

#[test]
fn programs_that_the_fuzzer_found() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/any_bytes");
    let mut cases = 0;
    for entry in fs::read_dir(corpus).unwrap() {
        run_bytes(&fs::read(entry.unwrap().path()).unwrap());
        cases += 1;
    }
    assert!(cases > 0);
}
