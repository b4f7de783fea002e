package catalog

// What is said of things that are not here yet.
const (
	noGPU       = "there are no GPU reservations yet; list_capabilities says what this deployment can do"
	noInstances = "there are no instances yet; create_sandbox gives an isolated machine"
	noNodes     = "nodes are for the people who run this deployment"
	noUsage     = "usage and billing are not counted yet; get_limits shows the quotas and their use"
	noPreview   = "ports cannot be shared yet; reach a server from inside the sandbox with run_command"
	noNetwork   = "the network is chosen at create_sandbox with network.internet; finer rules are not here yet"
	noSecrets   = "there is no secret store yet; env of create_sandbox sets variables"
	noJobs      = "there are no scheduled jobs yet"
	noCode      = "there are no notebook sessions yet; write_file and run_command run a script"
	noDesktop   = "there is no desktop yet"
	noWatch     = "directories cannot be watched yet; list_files shows them"
	noLink      = "there are no file links yet; read_file and write_file carry content"
	noSupport   = "tell the person, with the requestId and without secrets"
)

// names are those that are one word for one thing.
var names = []Old{
	// Compute for GPUs and sandboxes.
	{Name: "capacity_summary", Note: noGPU},
	{Name: "preview_reservation", Note: noGPU},
	{Name: "reserve_gpus", Note: noGPU},
	{Name: "release_reservation", Note: noGPU},
	{Name: "list_reservations", Note: noGPU},
	{Name: "get_reservation", Note: noGPU},
	{Name: "extend_reservation", Note: noGPU},
	{Name: "node_status", Note: noNodes},
	{Name: "run_diagnostic", Note: noNodes},
	{Name: "exec_command", Note: noNodes + "; run_command runs a command in a sandbox"},
	{Name: "list_command_batches", Note: noNodes},
	{Name: "get_command_batch", Note: noNodes},
	{Name: "propose_command_batch", Note: noNodes},
	{Name: "fleet_export", Note: noNodes},
	{Name: "fleet_plan", Note: noNodes},
	{Name: "create_instance", Note: noInstances},
	{Name: "list_instances", Note: noInstances},
	{Name: "get_instance", Note: noInstances},
	{Name: "start_instance", Note: noInstances},
	{Name: "stop_instance", Note: noInstances},
	{Name: "delete_instance", Note: noInstances},
	{Name: "list_sandbox_templates", Tool: "list_templates"},
	{Name: "create_sandbox", Tool: "create_sandbox"},
	{Name: "list_sandboxes", Tool: "list_sandboxes"},
	{Name: "get_sandbox", Tool: "get_sandbox"},
	{Name: "extend_sandbox", Tool: "extend_sandbox"},
	{Name: "delete_sandbox", Tool: "delete_sandbox"},
	{Name: "list_sandbox_snapshots", Tool: "list_snapshots"},
	{Name: "delete_sandbox_snapshot", Tool: "delete_snapshot"},
	{Name: "list_sandbox_volumes", Tool: "list_volumes"},
	{Name: "create_sandbox_volume", Tool: "create_volume"},
	{Name: "resize_sandbox_volume", Tool: "resize_volume"},
	{Name: "delete_sandbox_volume", Tool: "delete_volume"},

	// Sandboxes of a team.
	{Name: "get_sandbox_metrics", Tool: "get_sandbox_metrics"},
	{Name: "get_sandbox_logs", Tool: "get_sandbox_logs"},
	{Name: "get_team_usage", Note: noUsage},
	{Name: "list_templates", Tool: "list_templates"},
	{Name: "get_template", Tool: "get_template"},
	{Name: "build_template", Tool: "build_template"},
	{Name: "get_build_logs", Tool: "get_build_logs"},
	{Name: "get_build_status", Tool: "get_build_status"},
	{Name: "list_snapshots", Tool: "list_snapshots"},
	{Name: "snapshot_sandbox", Tool: "snapshot_sandbox"},
	{Name: "get_usage", Note: noUsage},
	{Name: "list_top_sandboxes", Note: noUsage},
	{Name: "get_limits", Tool: "get_limits"},
	{Name: "get_billing", Note: noUsage},
	{Name: "list_invoices", Note: noUsage},
	{Name: "set_sandbox_timeout", Tool: "set_sandbox_timeout"},
	{Name: "pause_sandbox", Tool: "pause_sandbox"},
	{Name: "resume_sandbox", Tool: "resume_sandbox"},
	{Name: "fork_sandbox", Tool: "fork_sandbox"},
	{Name: "run_command", Tool: "run_command"},
	{Name: "read_file", Tool: "read_file"},
	{Name: "write_file", Tool: "write_file"},
	{Name: "list_files", Tool: "list_files"},
	{Name: "kill_sandbox", Tool: "delete_sandbox"},

	// Virtual machines.
	{Name: "account_get", Tool: "get_account"},
	{Name: "workspace_list", Tool: "list_workspaces"},
	{Name: "sandbox_list", Tool: "list_sandboxes"},
	{Name: "sandbox_get", Tool: "get_sandbox"},
	{Name: "sandbox_create", Tool: "create_sandbox", Note: "the disk is resources.diskGiB"},
	{Name: "sandbox_start", Tool: "start_sandbox"},
	{Name: "sandbox_stop", Tool: "stop_sandbox"},
	{Name: "sandbox_delete", Tool: "delete_sandbox"},
	{Name: "command_run", Tool: "run_command"},
	{Name: "process_start", Tool: "start_process"},
	{Name: "process_get", Tool: "get_process"},
	{Name: "process_output", Tool: "read_process_output"},
	{Name: "process_cancel", Tool: "signal_process", Note: "with signal TERM, or KILL"},
	{Name: "file_read", Tool: "read_file"},
	{Name: "file_list", Tool: "list_files"},
	{Name: "file_write", Tool: "write_file"},
	{Name: "file_edit", Tool: "edit_file"},
	{Name: "preview_create", Note: noPreview},
}
