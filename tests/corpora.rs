//! What the fuzzers keep in `fuzz/corpus` holds with every build, without the nightly toolchain.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

// The checks name the rooms as parts of their own crate.
use omniroute::{api, classify, protocol, routing, snapshot};

#[path = "../fuzz/checks/mod.rs"]
mod checks;

use std::collections::BTreeSet;
use std::path::Path;

use proptest::prelude::*;

#[test]
fn every_input_that_was_kept_holds() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    let names = |folder: &Path| -> BTreeSet<String> {
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    let targets: BTreeSet<String> = checks::ALL.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(names(&corpus), targets, "a folder for each check");
    for (target, check) in checks::ALL {
        let files = names(&corpus.join(target));
        assert!(!files.is_empty(), "{target}");
        for file in files {
            let data = std::fs::read(corpus.join(target).join(&file)).unwrap();
            let held = std::panic::catch_unwind(|| check(&data));
            assert!(held.is_ok(), "fuzz/corpus/{target}/{file}");
        }
    }
}

#[test]
fn every_check_has_its_fuzzer() {
    let manifest = include_str!("../fuzz/Cargo.toml");
    let fuzzers: Vec<&str> =
        manifest.lines().filter_map(|line| line.strip_prefix("path = \"fuzz_targets/")?.strip_suffix(".rs\"")).collect();
    let checks: Vec<&str> = checks::ALL.iter().map(|(name, _)| *name).collect();
    assert_eq!(fuzzers, checks);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_hold(data in proptest::collection::vec(any::<u8>(), 0..300)) {
        for (_, check) in checks::ALL {
            check(&data);
        }
    }

    #[test]
    fn what_was_kept_holds_when_a_byte_of_it_changes(place in any::<prop::sample::Index>(), byte: u8, file in 0usize..64) {
        for (target, check) in checks::ALL {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
            let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
            files.sort();
            let mut data = std::fs::read(&files[file % files.len()]).unwrap();
            let at = place.index(data.len());
            data[at] = byte;
            check(&data);
        }
    }
}
