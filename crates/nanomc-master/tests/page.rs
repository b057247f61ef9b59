//! The admin page in a real browser: it shows what there is, and names from the cluster stay text. Where there is no Chromium on the
//! PATH this says so and is passed over. `NMC_PAGE_SHOT=FILE.png` keeps a picture of the page as a phone shows it.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, reason = "a test may")]

mod common;

use common::{Node, Running};
use nanomc_master::proto::v1;
use std::process::{Command, Stdio};

fn chromium() -> Option<&'static str> {
    let starts = |name: &&str| {
        Command::new(name)
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|s| s.success())
    };
    ["chromium", "chromium-browser", "google-chrome"].into_iter().find(starts)
}

#[tokio::test]
async fn the_page_shows_the_cluster_and_names_stay_text() {
    let Some(browser) = chromium() else {
        eprintln!("skipped: there is no Chromium on the PATH (Debian: apt-get install chromium)");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let master = Running::start(&["--state", state.to_str().unwrap()]);
    let mut node = Node::join(&master.address, "node-a", None);
    let mut evil = Node::join(&master.address, "<img src=x onerror=document.title='bad'>", None);
    let mut client = master.client().await;
    let start = v1::PutStartRequest { key: b"k".to_vec(), value_length: 9, ..Default::default() };
    let put = client.put_start(start).await.unwrap().into_inner().put_id;
    node.publish(1, "k", put, 9);
    client.exists(v1::ExistsRequest { key: b"k".to_vec(), ..Default::default() }).await.unwrap();
    node.ping();
    evil.ping();
    let profile = dir.path().join("profile");
    let browse = |more: &str| {
        let mut command = Command::new(browser);
        command.args([
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--window-size=500,900",
        ]);
        command.arg(format!("--user-data-dir={}", profile.display()));
        // Time of the page's own: it has asked for everything once by then.
        command.args(["--virtual-time-budget=3000", more, &format!("http://{}/", master.http)]);
        let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let page = browse("--dump-dom");
    for part in [
        "<title>nanomc master</title>",
        ">leader</span>",
        "<b>node-a/ram</b>",
        "<b>node-a</b>",
        ">active</span>",
        "8.0 KiB of 1.0 GiB",
        ">100.0 %</span>",
    ] {
        assert!(page.contains(part), "{part} is not in\n{page}");
    }
    assert!(page.contains("<b>&lt;img src=x") && !page.contains("<img"), "{page}");
    if let Some(path) = std::env::var_os("NMC_PAGE_SHOT") {
        browse(&format!("--screenshot={}", path.to_str().unwrap()));
    }
}
