//! What cluster mode uses from outside: NIXL's C library for transfers, etcd for the election of a master. Both are
//! looked for where they usually are; no program is started.

use super::Check;
use crate::sys;
use std::ffi::CString;
use std::path::{Path, PathBuf};

/// All checks of this file.
pub fn checks() -> Vec<Check> {
    let nixl = nixl(std::env::var("NMC_NIXL").ok().filter(|path| !path.is_empty()).as_deref(), find_nixl);
    let etcd = match in_path("etcd") {
        Some(path) => Check::ok("cluster.etcd", path.display().to_string(), "failover of the cluster's master"),
        None => Check::ok("cluster.etcd", "no etcd in PATH", "failover of the cluster's master")
            .warn_if(true, "apt install etcd-server, or point the cluster at an etcd elsewhere"),
    };
    vec![nixl, etcd]
}

fn in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// The library is loaded from where `NMC_NIXL` says, or by its name; a wheel alone is not enough.
fn nixl(said: Option<&str>, find: impl Fn() -> Option<PathBuf>) -> Check {
    let check = |value: String| Check::ok("cluster.nixl", value, "protocol rdma; without it bytes go by TCP");
    if let Some(path) = said {
        let loads = CString::new(path).is_ok_and(|path| sys::can_load(&path));
        return match loads {
            true => check(format!("NMC_NIXL is {path}")),
            false => check(format!("NMC_NIXL is {path}, which cannot be loaded"))
                .missing_if(true, "set it to libnixl_capi.so"),
        };
    }
    if sys::can_load(c"libnixl_capi.so") {
        return check("libnixl_capi.so is on the library path".to_owned());
    }
    match find() {
        Some(file) => check(format!("{} is there, but nothing leads to it", file.display()))
            .missing_if(true, format!("export NMC_NIXL={}", file.display())),
        None => check("libnixl_capi.so was not found".to_owned())
            .missing_if(true, "pip install --no-deps nixl-cu12, and set NMC_NIXL to its libnixl_capi.so"),
    }
}

fn find_nixl() -> Option<PathBuf> {
    python_folders().iter().find_map(|folder| in_wheel(folder))
}

/// Folders into which pip installs, for the Pythons that can be seen from here.
fn python_folders() -> Vec<PathBuf> {
    let from_env = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let mut prefixes: Vec<PathBuf> = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(from_env).collect();
    // A Python in PATH belongs to the prefix above its bin folder.
    prefixes.extend(in_path("python3").and_then(|p| p.parent()?.parent().map(Path::to_path_buf)));
    if let Some(home) = from_env("HOME") {
        prefixes.push(home.join(".local"));
        prefixes.extend(subfolders(&home.join(".pyenv/versions"), ""));
    }
    prefixes.extend([PathBuf::from("/usr/local"), PathBuf::from("/usr")]);
    let mut folders: Vec<PathBuf> =
        from_env("PYTHONPATH").map(|p| std::env::split_paths(&p).collect()).unwrap_or_default();
    for prefix in prefixes {
        for python in subfolders(&prefix.join("lib"), "python3") {
            folders.extend([python.join("site-packages"), python.join("dist-packages")]);
        }
    }
    folders
}

/// The C library inside an installed wheel: in the package itself or in a folder beside it for bundled libraries.
fn in_wheel(packages: &Path) -> Option<PathBuf> {
    let mut folders = subfolders(packages, "nixl");
    folders.extend(subfolders(packages, ".nixl"));
    folders.into_iter().find_map(|folder| {
        let mut places = subfolders(&folder, "");
        places.insert(0, folder);
        places.iter().find_map(|place| {
            let entries = std::fs::read_dir(place).ok()?;
            let mut files = entries.flatten().map(|e| e.path());
            files.find(|f| f.file_name().is_some_and(|n| n.to_string_lossy().starts_with("libnixl_capi")))
        })
    })
}

fn subfolders(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let wanted = entries.flatten().filter(|e| e.file_name().to_string_lossy().starts_with(prefix));
    let mut found: Vec<PathBuf> = wanted.map(|e| e.path()).filter(|p| p.is_dir()).collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::*;

    #[test]
    fn only_what_the_library_will_load_counts() {
        let of = |said, found: Option<&str>| {
            let check = nixl(said, || found.map(PathBuf::from));
            (check.status, check.remedy)
        };
        assert_eq!(of(Some("libc.so.6"), None).0, Status::Ok);
        assert_eq!(of(Some("/nowhere.so"), Some("/wheel.so")).0, Status::Missing);
        if sys::can_load(c"libnixl_capi.so") {
            return println!("skipped: NIXL is on the library path");
        }
        assert_eq!(of(None, Some("/wheel.so")), (Status::Missing, "export NMC_NIXL=/wheel.so".to_owned()));
        assert_eq!(of(None, None).0, Status::Missing);
    }

    #[test]
    fn the_library_is_found_inside_a_wheel() -> std::io::Result<()> {
        let packages = tempfile::tempdir()?;
        assert_eq!(in_wheel(packages.path()), None);
        let libs = packages.path().join(".nixl_cu12.mesonpy.libs");
        std::fs::create_dir_all(&libs)?;
        std::fs::create_dir_all(packages.path().join("nixl_cu12/api"))?;
        assert_eq!(in_wheel(packages.path()), None, "the folders alone are not the library");
        std::fs::write(libs.join("libnixl_capi.so"), "")?;
        assert_eq!(in_wheel(packages.path()), Some(libs.join("libnixl_capi.so")));
        Ok(())
    }
}
