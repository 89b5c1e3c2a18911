//! What the operator makes of `ResilienceSettings.spec.gateway`, kept as files: `tests/golden/gateway/NAME.in.yaml` in, `NAME.out.yaml` out.

use omniroute::api::gateway::Gateway;
use omniroute::operator::apply::Owner;
use omniroute::operator::build::{Delivery, Intent, children};
use omniroute::snapshot::Snapshot;
use serde_json::Value;

use super::tools::{documents, file, root};

const FOLDER: &str = "tests/golden/gateway";
const INPUT: &str = ".in.yaml";

/// Names of the goldens.
pub fn names() -> Vec<String> {
    let entries = std::fs::read_dir(root().join(FOLDER)).expect("goldens");
    let files = entries.map(|entry| entry.expect("entry").file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = files.filter_map(|file| file.strip_suffix(INPUT).map(str::to_owned)).collect();
    names.sort();
    names
}

/// The objects of one golden.
pub fn objects(name: &str) -> Vec<Value> {
    documents(&file(&format!("{FOLDER}/{name}.out.yaml")))
}

/// Every object that the operator may make, with the name of its golden.
pub fn every_object() -> Vec<(String, Value)> {
    names().into_iter().flat_map(|name| objects(&name).into_iter().map(move |object| (name.clone(), object))).collect()
}

fn build(name: &str) -> String {
    let gateway: Gateway = serde_saphyr::from_str(&file(&format!("{FOLDER}/{name}{INPUT}"))).expect("a gateway");
    let owner = Owner { namespace: "team-a".into(), name: "default".into(), uid: "00000000-0000-0000-0000-000000000001".into() };
    let delivery = Delivery::pack(&Snapshot::default()).expect("a snapshot");
    let intent = Intent {
        owner: &owner,
        gateway: &gateway,
        default_image: concat!("localhost/omniroute:", env!("CARGO_PKG_VERSION")),
        pull_policy: "IfNotPresent",
        operator_namespace: "omniroute-system",
        delivery: &delivery,
    };
    let bodies = children(&intent).expect("children").into_iter().map(|child| {
        let mut body = child.body;
        // The snapshot: compressed, and the business of other tests.
        if body["kind"] == "Secret" {
            body["data"] = Value::Null;
            body["metadata"]["annotations"] = Value::Null;
        }
        format!("---\n{}\n", serde_saphyr::to_string(&body).expect("YAML").trim_end())
    });
    bodies.collect()
}

#[test]
fn a_gateway_has_the_children_that_it_had() {
    let names = names();
    assert!(names.len() >= 5, "only {} goldens", names.len());
    for name in names {
        let (path, built) = (root().join(format!("{FOLDER}/{name}.out.yaml")), build(&name));
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&path, &built).expect("golden");
        }
        let golden = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(golden == built, "{name} changed: UPDATE=1 cargo test --test packaging, and read the difference");
    }
}

/// The drain deadline of a golden's gateway, seconds.
pub fn drain_seconds(name: &str) -> Option<i64> {
    let path = root().join(format!("{FOLDER}/{name}{INPUT}"));
    let gateway: Gateway = serde_saphyr::from_str(&std::fs::read_to_string(path).ok()?).ok()?;
    i64::try_from(gateway.drain.deadline.ms().ok()? / 1_000).ok()
}
