//! The committed fatbin is the one made from the committed sources.

#![allow(clippy::expect_used, reason = "a test may")]

use std::fs;
use std::path::{Path, PathBuf};

#[path = "../build/kernels.rs"]
mod kernels;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A copy of everything that `check_prebuilt` reads.
fn copy_of_the_tree() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("temporary folder");
    let copy = folder.path().to_path_buf();
    let mut files = kernels::source_files(root()).expect("sources");
    files.extend(["nanomc.fatbin", "manifest.toml"].map(|f| format!("kernels/prebuilt/{f}")));
    for file in files {
        let target = copy.join(&file);
        fs::create_dir_all(target.parent().expect("parent")).expect("folder");
        fs::copy(root().join(&file), target).expect("copy");
    }
    (folder, copy)
}

fn flip_last_byte(file: &Path) {
    let mut bytes = fs::read(file).expect("read");
    *bytes.last_mut().expect("not empty") ^= 1;
    fs::write(file, bytes).expect("write");
}

#[test]
fn the_committed_fatbin_belongs_to_the_committed_sources() {
    assert_eq!(kernels::check_prebuilt(root()), Ok(()));
}

#[test]
fn the_manifest_names_compiler_and_archs() {
    let manifest = fs::read_to_string(root().join("kernels/prebuilt/manifest.toml")).expect("manifest");
    assert!(manifest.contains("compiler = \"Cuda compilation tools, release "), "{manifest}");
    assert!(manifest.contains("archs = [\"sm_80\", \"sm_90\", \"sm_100\", \"compute_80\"]"), "{manifest}");
}

#[test]
fn one_changed_byte_in_any_source_or_in_the_fatbin_is_detected() {
    let (_folder, copy) = copy_of_the_tree();
    assert_eq!(kernels::check_prebuilt(&copy), Ok(()), "the control must begin with a good copy");
    let mut files = kernels::source_files(&copy).expect("sources");
    assert!(files.len() >= 5, "{files:?}");
    files.push(String::from("kernels/prebuilt/nanomc.fatbin"));
    for file in files {
        flip_last_byte(&copy.join(&file));
        assert!(kernels::check_prebuilt(&copy).is_err(), "{file}");
        flip_last_byte(&copy.join(&file));
        assert_eq!(kernels::check_prebuilt(&copy), Ok(()), "{file}");
    }
}

#[test]
fn an_added_or_a_renamed_source_is_detected() {
    let (_folder, copy) = copy_of_the_tree();
    fs::write(copy.join("kernels/extra.cuh"), b"").expect("write");
    assert!(kernels::check_prebuilt(&copy).is_err());
    fs::remove_file(copy.join("kernels/extra.cuh")).expect("remove");
    fs::rename(copy.join("kernels/world.cu"), copy.join("kernels/world2.cu")).expect("rename");
    assert!(kernels::check_prebuilt(&copy).is_err());
}
