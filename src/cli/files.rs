//! Manifests in files: paths -> texts.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::manifest::Source;

/// Deepest nesting of folders, which also ends circles of links.
const MAX_DEPTH: usize = 16;
/// Largest file; the API server takes no object beyond 1.5 MiB, and a file may hold many.
const MAX_BYTES: u64 = 64 * 1024 * 1024;

/// A path that could not be read.
#[derive(thiserror::Error, Debug)]
#[error("reading {path}: {source}")]
pub struct Unreadable {
    /// The path.
    pub path: String,
    /// Why.
    pub source: io::Error,
}

/// Reads manifests: a file as it is, all `*.yaml`, `*.yml` and `*.json` below a folder (names that start with a dot are skipped), and
/// standard input for `-`. What cannot be read is told and leaves the rest alone.
#[must_use]
pub fn read(paths: &[PathBuf]) -> (Vec<Source>, Vec<Unreadable>) {
    let (mut sources, mut failures) = (Vec::new(), Vec::new());
    for path in paths {
        if path.as_os_str() == "-" {
            let mut text = String::new();
            match io::stdin().lock().take(MAX_BYTES).read_to_string(&mut text) {
                Ok(_) => sources.push(Source { name: "-".to_owned(), text }),
                Err(source) => failures.push(Unreadable { path: "standard input".to_owned(), source }),
            }
        } else {
            walk(path, 0, &mut sources, &mut failures);
        }
    }
    (sources, failures)
}

/// The same for commands that look once: a folder without any manifest is a slip, not an empty configuration.
#[must_use]
pub fn read_some(paths: &[PathBuf]) -> (Vec<Source>, Vec<Unreadable>) {
    let (sources, mut failures) = read(paths);
    let barren = |path: &&PathBuf| path.is_dir() && !sources.iter().any(|source| Path::new(&source.name).starts_with(path));
    if failures.is_empty() {
        failures.extend(paths.iter().filter(barren).map(|path| Unreadable {
            path: path.display().to_string(),
            source: io::Error::other("nothing below this folder ends in .yaml, .yml or .json"),
        }));
    }
    (sources, failures)
}

fn walk(path: &Path, depth: usize, sources: &mut Vec<Source>, failures: &mut Vec<Unreadable>) {
    if let Err(source) = visit(path, depth, sources, failures) {
        failures.push(Unreadable { path: path.display().to_string(), source });
    }
}

fn visit(path: &Path, depth: usize, sources: &mut Vec<Source>, failures: &mut Vec<Unreadable>) -> io::Result<()> {
    let meta = fs::metadata(path)?;
    if meta.is_dir() {
        if depth > MAX_DEPTH {
            return Err(io::Error::other(format!("folders are nested deeper than {MAX_DEPTH}; is there a circle of links?")));
        }
        let mut entries: Vec<PathBuf> = fs::read_dir(path)?.map(|e| e.map(|e| e.path())).collect::<io::Result<_>>()?;
        entries.sort();
        for entry in entries.iter().filter(|e| is_wanted(e)) {
            walk(entry, depth + 1, sources, failures);
        }
        return Ok(());
    }
    if meta.len() > MAX_BYTES {
        return Err(io::Error::other(format!("the file is larger than {MAX_BYTES} bytes")));
    }
    sources.push(Source { name: path.display().to_string(), text: fs::read_to_string(path)? });
    Ok(())
}

/// Inside a folder: no dot files (`.git`, the `..data` links of mounted ConfigMaps), and only the known endings.
fn is_wanted(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if name.starts_with('.') {
        return false;
    }
    path.is_dir() || path.extension().is_some_and(|e| ["yaml", "yml", "json"].iter().any(|known| e.eq_ignore_ascii_case(known)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_folders_in_order_and_tells_what_it_cannot_read() {
        let dir = std::env::temp_dir().join(format!("omniroute-files-{}", std::process::id()));
        fs::create_dir_all(dir.join("sub")).unwrap();
        fs::create_dir_all(dir.join(".git")).unwrap();
        for (name, text) in
            [("b.yml", "b"), ("a.yaml", "a"), ("sub/c.json", "{}"), ("notes.txt", "x"), (".git/d.yaml", "d"), (".e.yaml", "e")]
        {
            fs::write(dir.join(name), text).unwrap();
        }
        fs::write(dir.join("z.yaml"), [0xff, 0xfe]).unwrap();
        let (sources, failures) = read(&[dir.clone(), dir.join("absent.yaml")]);
        let names: Vec<String> = sources.iter().map(|s| s.name.replace(&dir.display().to_string(), "")).collect();
        assert_eq!(names, ["/a.yaml", "/b.yml", "/sub/c.json"]);
        let failed: Vec<bool> = failures.iter().map(|f| f.path.ends_with("z.yaml") || f.path.ends_with("absent.yaml")).collect();
        assert_eq!(failed, [true, true]);
        assert_eq!(read_some(&[dir.join("sub")]).1.len(), 0);
        fs::remove_file(dir.join("sub/c.json")).unwrap();
        let (_, barren) = read_some(&[dir.join("sub"), dir.join("a.yaml")]);
        assert!(barren.len() == 1 && barren[0].to_string().contains(".yaml, .yml or .json"), "{barren:?}");
        fs::remove_dir_all(dir).unwrap();
    }
}
