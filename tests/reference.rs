//! Pages under `docs/reference` are made from the code: `UPDATE=1 cargo test --test reference` writes them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[test]
fn reference_pages_are_current() {
    for (name, page) in [
        ("environment.md", omniroute::compile::reference::environment_page()),
        ("presets.md", omniroute::compile::reference::presets_page()),
        ("verdicts.md", omniroute::classify::reference::verdicts_page()),
    ] {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference").join(name);
        if std::env::var_os("UPDATE").is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, &page).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap_or_default(), page, "{name} is stale: run UPDATE=1 cargo test --test reference");
    }
}
