//! The part of the build script that provides the GPU kernels: the committed fatbin, or one compiled by `NMC_NVCC`.
//! It sets `NMC_FATBIN_PATH` for `src/cuda/kernels.rs`. `tests/kernels_manifest.rs` includes this file too, so that the
//! hash in the manifest is computed in one place only.
//!
//! To change kernels: `NMC_NVCC=/path/to/nvcc NMC_BLESS_KERNELS=1 cargo build`, then commit `kernels/prebuilt`.

#![allow(dead_code, reason = "the build script and the test each use a part")]
#![allow(clippy::panic, reason = "a build script reports by panicking")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

use xxhash_rust::xxh64::{Xxh64, xxh64};

/// What the fatbin contains; written into the manifest next to what produced it. `kernels/build.sh` has the flags.
const ARCHS: &[&str] = &["sm_80", "sm_90", "sm_100", "compute_80"];

/// Provides the fatbin and tells cargo where it is and when to ask again.
pub fn emit() {
    let root = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    println!("cargo:rerun-if-env-changed=NMC_NVCC");
    println!("cargo:rerun-if-env-changed=NMC_BLESS_KERNELS");
    println!("cargo:rerun-if-changed=build/kernels.rs");
    println!("cargo:rerun-if-changed=kernels/prebuilt/nanomc.fatbin");
    let sources =
        source_files(&root).unwrap_or_else(|e| panic!("cannot list the kernel sources in {}: {e}", root.display()));
    for source in &sources {
        println!("cargo:rerun-if-changed={source}");
    }
    let bless = env::var("NMC_BLESS_KERNELS").is_ok_and(|v| v == "1");
    let fatbin = match env::var("NMC_NVCC") {
        Ok(nvcc) if !nvcc.is_empty() => {
            let built = compile(&root, &nvcc);
            if bless {
                write_prebuilt(&root, &nvcc, &built).unwrap_or_else(|e| panic!("cannot write kernels/prebuilt: {e}"));
            }
            built
        }
        _ if bless => panic!("NMC_BLESS_KERNELS=1 needs NMC_NVCC=/path/to/nvcc to compile the kernels with"),
        _ => committed(&root),
    };
    println!("cargo:rustc-env=NMC_FATBIN_PATH={}", fatbin.display());
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("{name} is not set; this file is run by cargo"))
}

fn committed(root: &Path) -> PathBuf {
    let fatbin = root.join("kernels/prebuilt/nanomc.fatbin");
    if !fatbin.is_file() {
        panic!("{} is missing; restore it, or set NMC_NVCC to an nvcc 13.0 to compile the kernels", fatbin.display());
    }
    if let Err(problem) = check_prebuilt(root) {
        println!("cargo:warning={problem}");
    }
    fatbin
}

fn compile(root: &Path, nvcc: &str) -> PathBuf {
    let out = PathBuf::from(variable("OUT_DIR"));
    let script = root.join("kernels/build.sh");
    let status = Command::new("sh").arg(&script).arg(nvcc).arg(&out).status();
    match status {
        Ok(status) if status.success() => out.join("nanomc.fatbin"),
        Ok(status) => panic!("NMC_NVCC={nvcc}: {} failed ({status}); its messages are above", script.display()),
        Err(error) => panic!("cannot run sh {}: {error}", script.display()),
    }
}

fn write_prebuilt(root: &Path, nvcc: &str, built: &Path) -> io::Result<()> {
    let version = Command::new(nvcc).arg("--version").output()?;
    let text = String::from_utf8_lossy(&version.stdout).into_owned();
    let compiler = text.lines().find(|l| l.contains("release")).unwrap_or("unknown").trim();
    let image = fs::read(built)?;
    let archs: Vec<String> = ARCHS.iter().map(|a| format!("\"{a}\"")).collect();
    let manifest = format!(
        "# Written by NMC_NVCC=... NMC_BLESS_KERNELS=1 cargo build; checked by tests/kernels_manifest.rs.\n\
         sources_xxh64 = \"{:016x}\"\n\
         compiler = \"{compiler}\"\n\
         archs = [{}]\n\
         fatbin_xxh64 = \"{:016x}\"\n\
         fatbin_bytes = {}\n",
        sources_hash(root)?,
        archs.join(", "),
        xxh64(&image, 0),
        image.len()
    );
    let folder = root.join("kernels/prebuilt");
    fs::create_dir_all(&folder)?;
    fs::write(folder.join("nanomc.fatbin"), &image)?;
    fs::write(folder.join("manifest.toml"), manifest)
}

/// What the fatbin is made from, as sorted paths below `root`: `kernels/*.cu`, `kernels/*.cuh`, `kernels/build.sh` (the
/// flags) and everything in `include/nanomc` but `.hpp`, which is for programs: no kernel includes it.
pub fn source_files(root: &Path) -> io::Result<Vec<String>> {
    let mut files = vec![String::from("kernels/build.sh")];
    for entry in fs::read_dir(root.join("kernels"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".cu") || name.ends_with(".cuh") {
            files.push(format!("kernels/{name}"));
        }
    }
    let mut folders = vec![String::from("include/nanomc")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root.join(&folder))? {
            let entry = entry?;
            let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
            if entry.file_type()?.is_dir() {
                folders.push(path);
            } else if !path.ends_with(".hpp") {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Hash over path, length and content of every source, in the order of their paths.
pub fn sources_hash(root: &Path) -> io::Result<u64> {
    let mut hash = Xxh64::new(0);
    for file in source_files(root)? {
        let content = fs::read(root.join(&file))?;
        hash.update(file.as_bytes());
        hash.update(&[0]);
        hash.update(&(content.len() as u64).to_le_bytes());
        hash.update(&content);
    }
    Ok(hash.digest())
}

/// `Err` with what to do when sources, manifest and fatbin do not belong together.
pub fn check_prebuilt(root: &Path) -> Result<(), String> {
    let remedy = "rebuild with NMC_NVCC=/path/to/nvcc NMC_BLESS_KERNELS=1 cargo build";
    let folder = root.join("kernels/prebuilt");
    let manifest =
        fs::read_to_string(folder.join("manifest.toml")).map_err(|e| format!("manifest.toml: {e}; {remedy}"))?;
    let image = fs::read(folder.join("nanomc.fatbin")).map_err(|e| format!("nanomc.fatbin: {e}; {remedy}"))?;
    let sources = sources_hash(root).map_err(|e| format!("kernel sources: {e}"))?;
    let expected = [
        ("sources_xxh64", format!("\"{sources:016x}\"")),
        ("fatbin_xxh64", format!("\"{:016x}\"", xxh64(&image, 0))),
        ("fatbin_bytes", image.len().to_string()),
    ];
    for (key, found) in expected {
        let said = manifest.lines().find_map(|l| l.strip_prefix(key)?.trim_start().strip_prefix('=')).map(str::trim);
        if said != Some(found.as_str()) {
            return Err(format!(
                "kernels/prebuilt: {key} is {found}, and the manifest says {}; {remedy}",
                said.unwrap_or("nothing")
            ));
        }
    }
    Ok(())
}
