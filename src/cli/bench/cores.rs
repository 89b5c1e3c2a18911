//! One core for everybody: on several, the latency of a lone request is mostly that of waking the core that the next process was placed on.

#[cfg(target_os = "linux")]
pub(super) use linux::OneCore;

/// Where threads cannot be held on a core.
#[cfg(not(target_os = "linux"))]
pub(super) struct OneCore;

#[cfg(not(target_os = "linux"))]
impl OneCore {
    pub fn hold(_: &[u32]) -> Result<Self, String> {
        Err("threads can be held on a core on Linux only".to_owned())
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::collections::{HashMap, HashSet};
    use std::fs;

    use rustix::io::Errno;
    use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

    /// Holds all threads of some processes on one core, until it is dropped.
    #[derive(Debug)]
    pub(in crate::cli::bench) struct OneCore {
        processes: Vec<Held>,
    }

    /// Where the threads of a process could run before, by their id.
    #[derive(Debug, Default)]
    struct Held {
        process: u32,
        before: HashMap<Pid, CpuSet>,
        /// Where the first of them could run.
        whole: Option<CpuSet>,
    }

    impl OneCore {
        /// Puts everybody on the last core that this thread may use: the first one has most of the interrupts.
        ///
        /// # Errors
        /// Says whose threads could not be put there; all are then where they were.
        pub fn hold(processes: &[u32]) -> Result<Self, String> {
            let allowed = sched_getaffinity(None).map_err(|e| format!("asking where this process may run: {e}"))?;
            let mut core = CpuSet::new();
            (0..CpuSet::MAX_CPU).rev().find(|cpu| allowed.is_set(*cpu)).into_iter().for_each(|cpu| core.set(cpu));
            let mut held = Self { processes: Vec::with_capacity(processes.len()) };
            for process in processes {
                held.processes.push(Held { process: *process, ..Held::default() });
                let Some(last) = held.processes.last_mut() else { continue };
                // What goes wrong half-way is undone with the value.
                last.hold(&core).map_err(|why| format!("holding process {process} on one core: {why}"))?;
            }
            Ok(held)
        }
    }

    impl Drop for OneCore {
        fn drop(&mut self) {
            self.processes.iter().for_each(Held::release);
        }
    }

    impl Held {
        fn hold(&mut self, core: &CpuSet) -> Result<(), String> {
            each_thread(self.process, |thread| {
                let before = sched_getaffinity(Some(thread))?;
                sched_setaffinity(Some(thread), core)?;
                self.whole.get_or_insert(before);
                // One that began meanwhile has the core of who began it, and is not to keep it.
                if before != *core {
                    self.before.insert(thread, before);
                }
                Ok(())
            })
        }

        /// Those that began while the others were held may run where the first one may.
        fn release(&self) {
            let Some(whole) = &self.whole else { return };
            // A process that has ended needs nothing.
            let _ = each_thread(self.process, |thread| sched_setaffinity(Some(thread), self.before.get(&thread).unwrap_or(whole)));
        }
    }

    /// Does something to all threads of a process. More may begin meanwhile, from one that it was not done to yet: looks until there is none.
    fn each_thread(process: u32, mut act: impl FnMut(Pid) -> rustix::io::Result<()>) -> Result<(), String> {
        let mut seen = HashSet::new();
        loop {
            let new: Vec<Pid> = threads(process)?.into_iter().filter(|thread| seen.insert(*thread)).collect();
            if new.is_empty() {
                return Ok(());
            }
            for thread in new {
                match act(thread) {
                    // One that has ended needs nothing.
                    Ok(()) | Err(Errno::SRCH) => {}
                    Err(why) => return Err(why.to_string()),
                }
            }
        }
    }

    /// The threads of a process, the one with its own id first.
    fn threads(process: u32) -> Result<Vec<Pid>, String> {
        let path = format!("/proc/{process}/task");
        let entries = fs::read_dir(&path).map_err(|e| format!("{path}: {e}"))?;
        let id = |entry: std::io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok().and_then(Pid::from_raw);
        Ok(entries.filter_map(id).collect())
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};

    use super::*;

    const THREAD: &str = "a thread began";

    /// The child of the test below: begins a thread for each line that it reads, and ends with its input.
    #[test]
    #[ignore = "a part of another test"]
    fn threads_on_demand() {
        for _ in std::io::stdin().lines() {
            std::thread::spawn(|| {
                loop {
                    std::thread::park();
                }
            });
            println!("{THREAD}");
        }
    }

    /// The cores that each thread may run on.
    fn cores(process: u32) -> Vec<String> {
        let tasks = fs::read_dir(format!("/proc/{process}/task")).unwrap();
        let status = tasks.map(|task| fs::read_to_string(task.unwrap().path().join("status")).unwrap());
        status.map(|s| s.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:")).unwrap().trim().to_owned()).collect()
    }

    #[test]
    fn all_threads_are_held_and_all_are_let_go() {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "--nocapture", "cli::bench::cores::tests::threads_on_demand"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (id, mut input) = (child.id(), child.stdin.take().unwrap());
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut begin = || {
            writeln!(input, "one more").unwrap();
            while !output.next().unwrap().unwrap().ends_with(THREAD) {}
        };
        begin();
        begin();
        let before = cores(id);
        assert!(before.len() >= 3, "the first and two more: {before:?}");
        let allowed: BTreeSet<_> = before.iter().collect();
        assert_eq!(allowed.len(), 1, "{before:?}");

        let held = OneCore::hold(&[id]).unwrap();
        let there = cores(id);
        assert!(there.iter().all(|c| c.parse::<usize>().is_ok() && *c == there[0]), "{there:?}");
        begin();
        assert_eq!(cores(id).len(), before.len() + 1);
        drop(held);
        assert_eq!(cores(id).iter().collect::<BTreeSet<_>>(), allowed, "the thread that began meanwhile too");

        assert!(OneCore::hold(&[id, u32::MAX]).is_err_and(|why| why.contains("4294967295")));
        assert_eq!(cores(id).iter().collect::<BTreeSet<_>>(), allowed, "what was half done is undone");
        drop(input);
        child.wait().unwrap();
    }
}
