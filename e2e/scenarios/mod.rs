//! What the suite proves, in the order in which it runs.

mod audit;
mod canary;
mod chart;
mod definitions;
mod leader;
mod metrics;
mod outage;
mod quickstart;
mod repair;
mod restarts;
mod rules;
mod secrets;

use super::cluster::Outcome;
use super::world::World;

/// One thing that is proven.
pub struct Scenario {
    /// Its name on the command line and in the report.
    pub name: &'static str,
    /// Stops components, reads the audit log or reaches pods directly, so it needs the throw-away cluster of `e2e/cluster`.
    pub needs_own_cluster: bool,
    /// The proof.
    pub run: fn(&World) -> Outcome,
}

const fn anywhere(name: &'static str, run: fn(&World) -> Outcome) -> Scenario {
    Scenario { name, needs_own_cluster: false, run }
}

const fn own_cluster(name: &'static str, run: fn(&World) -> Outcome) -> Scenario {
    Scenario { name, needs_own_cluster: true, run }
}

/// Fails with a message when something does not hold.
pub fn ensure(holds: bool, message: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(message()) }
}

/// All of them. Those that read the audit log come after those that fill it; the chart comes last, because it takes the plain installation away.
pub const SCENARIOS: &[Scenario] = &[
    anywhere("the_quickstart_serves_the_official_sdk", quickstart::serves),
    anywhere("one_account_cools_and_no_client_notices", quickstart::cools),
    anywhere("columns_say_who_is_out_and_until_when", quickstart::columns),
    anywhere("a_combo_and_a_key_change_without_a_restart", quickstart::changes),
    anywhere("the_api_server_decides_as_validate_does", definitions::fixtures),
    anywhere("the_api_server_stores_definitions_as_they_are_written", definitions::stored_as_written),
    anywhere("the_api_server_selects_connections_by_provider", definitions::selectable),
    anywhere("a_rotated_credential_takes_effect_and_clears_the_dead_state", secrets::rotate),
    anywhere("a_missing_credential_takes_out_one_connection_only", secrets::missing),
    anywhere("cooldowns_survive_every_gateway_pod", restarts::cooldowns_survive),
    anywhere("annotations_clear_cooldowns_and_terminal_states", restarts::annotations_clear),
    anywhere("a_rule_says_what_an_answer_means", rules::teach),
    anywhere("drift_is_repaired_and_foreign_fields_stay", repair::drift),
    anywhere("optional_children_come_and_go", repair::optional_children),
    anywhere("foreign_objects_are_never_adopted", repair::foreign_objects),
    anywhere("the_order_of_objects_does_not_matter", repair::any_order),
    anywhere("mistakes_are_conditions_with_a_way_out", repair::mistakes),
    anywhere("alerts_read_metrics_that_exist", metrics::alerts_read_what_exists),
    own_cluster("leadership_moves_in_time", leader::changes),
    own_cluster("the_data_plane_does_not_need_the_api_server", outage::api_server_away),
    own_cluster("no_secret_is_anywhere_but_in_secrets", canary::nowhere_else),
    own_cluster("nothing_is_written_at_rest", audit::silence),
    own_cluster("there_was_never_more_than_one_writer", audit::one_writer),
    own_cluster("every_status_ever_written_is_right_for_waiters", audit::statuses),
    own_cluster("a_refused_status_is_not_sent_again_and_again", audit::few_conflicts),
    own_cluster("children_and_statuses_are_written_by_server_side_apply_only", audit::applies_only),
    own_cluster("objects_of_users_are_not_written", audit::user_objects_untouched),
    own_cluster("rights_are_exactly_those_in_use", audit::least_privilege),
    own_cluster("the_chart_installs_upgrades_and_leaves", chart::life),
];
