package catalog

import "slices"

var old = slices.Concat(names, grouped(), renamed())

// grouped are the names of a service whose tools take an action.
func grouped() []Old {
	return []Old{
		{Name: "runtime_connect", Note: "this connection is signed in already; get_account says as whom"},
		{Name: "runtime_sandboxes_create", Tool: "create_sandbox"},
		{Name: "runtime_sandboxes_list", Tool: "list_sandboxes", Note: "get_sandbox reads one by sandboxId"},
		{Name: "runtime_sandboxes_manage", Tool: "update_sandbox", Note: "for name, labels and env; stop_sandbox, start_sandbox, extend_sandbox and delete_sandbox are tools of their own"},
		{Name: "runtime_sandboxes_manage", Action: "stop", Tool: "stop_sandbox"},
		{Name: "runtime_sandboxes_manage", Action: "restart", Tool: "start_sandbox"},
		{Name: "runtime_sandboxes_manage", Action: "start", Tool: "start_sandbox"},
		{Name: "runtime_sandboxes_manage", Action: "extend", Tool: "extend_sandbox"},
		{Name: "runtime_sandboxes_manage", Action: "update", Tool: "update_sandbox"},
		{Name: "runtime_sandboxes_manage", Action: "persist", Tool: "update_sandbox", Note: "with persist true"},
		{Name: "runtime_sandboxes_manage", Action: "delete", Tool: "delete_sandbox"},
		{Name: "runtime_sandboxes_manage", Action: "pause", Note: noPause},
		{Name: "runtime_sandboxes_manage", Action: "wake", Note: noPause},
		{Name: "runtime_sandboxes_manage", Action: "retention", Tool: "update_sandbox", Note: "with retention, such as 3d"},
		{Name: "runtime_sandboxes_manage", Action: "switch-image", Note: noTemplates},
		{Name: "runtime_sandboxes_inspect", Tool: "get_sandbox"},
		{Name: "runtime_sandboxes_exec", Tool: "run_command", Note: "a list of arguments is argv; for background true call start_process"},
		{Name: "runtime_sandboxes_process", Tool: "get_process", Note: "list_processes, read_process_output, write_process_input and signal_process are tools of their own"},
		{Name: "runtime_sandboxes_process", Action: "read", Tool: "read_process_output"},
		{Name: "runtime_sandboxes_process", Action: "list", Tool: "list_processes"},
		{Name: "runtime_sandboxes_process", Action: "write", Tool: "write_process_input"},
		{Name: "runtime_sandboxes_process", Action: "input", Tool: "write_process_input"},
		{Name: "runtime_sandboxes_process", Action: "signal", Tool: "signal_process"},
		{Name: "runtime_sandboxes_files_read", Tool: "read_file"},
		{Name: "runtime_sandboxes_files_write", Tool: "write_file"},
		{Name: "runtime_sandboxes_files_list", Tool: "list_files"},
		{Name: "runtime_sandboxes_files_manage", Tool: "stat_file", Note: "make_directory, move_file and remove_file are tools of their own"},
		{Name: "runtime_sandboxes_files_manage", Action: "stat", Tool: "stat_file"},
		{Name: "runtime_sandboxes_files_manage", Action: "make", Tool: "make_directory"},
		{Name: "runtime_sandboxes_files_manage", Action: "mkdir", Tool: "make_directory"},
		{Name: "runtime_sandboxes_files_manage", Action: "move", Tool: "move_file"},
		{Name: "runtime_sandboxes_files_manage", Action: "remove", Tool: "remove_file"},
		{Name: "runtime_sandboxes_files_link", Note: noLink},
		{Name: "runtime_sandboxes_files_watch", Note: noWatch},
		{Name: "runtime_sandboxes_interpreter_run", Note: noCode},
		{Name: "runtime_sandboxes_interpreter_contexts", Note: noCode},
		{Name: "runtime_sandboxes_fork", Note: noFork},
		{Name: "runtime_sandboxes_mounts", Note: "buckets cannot be mounted yet; run_command can copy to and from them"},
		{Name: "runtime_sandboxes_previews", Note: noPreview},
		{Name: "runtime_sandboxes_tailscale", Note: noNetwork},
		{Name: "runtime_sandboxes_network", Note: noNetwork},
		{Name: "runtime_sandboxes_network", Action: "get", Tool: "get_sandbox", Note: "it shows network"},
		{Name: "runtime_sandboxes_desktop_act", Note: noDesktop},
		{Name: "runtime_sandboxes_desktop_screenshot", Note: noDesktop},
		{Name: "runtime_sandboxes_desktop_record", Note: noDesktop},
		{Name: "runtime_sandboxes_mcp", Note: "servers of your own run with start_process, without a URL yet"},
		{Name: "runtime_sandboxes_metrics", Tool: "get_sandbox_metrics"},
		{Name: "runtime_images_build", Tool: "manage_images", Verb: "pull", Note: "it brings in an image of a registry; recipes are not built yet"},
		{Name: "runtime_images_registries", Tool: "manage_registries", Verb: "list", Note: "set keeps a registry's credential and delete removes it"},
		{Name: "runtime_images", Tool: "manage_images", Verb: "list"},
		{Name: "runtime_images", Action: "get", Tool: "manage_images", Verb: "get"},
		{Name: "runtime_images", Action: "tag", Tool: "manage_images", Verb: "tag"},
		{Name: "runtime_images", Action: "delete", Tool: "manage_images", Verb: "delete"},
		{Name: "runtime_images_get", Tool: "manage_images", Verb: "get"},
		{Name: "runtime_images_tag", Tool: "manage_images", Verb: "tag"},
		{Name: "runtime_images_delete", Tool: "manage_images", Verb: "delete"},
		{Name: "runtime_volumes", Note: noVolumes},
		{Name: "runtime_volumes_backup", Note: noVolumes},
		{Name: "runtime_snapshots", Note: noSnapshot},
		{Name: "runtime_events_list", Note: "events are not listed yet; get_sandbox and get_process show the present state"},
		{Name: "runtime_webhooks_manage", Note: "there are no webhooks yet"},
		{Name: "runtime_otel_manage", Note: "metrics are not exported yet"},
		{Name: "runtime_domains", Note: noPreview},
		{Name: "runtime_ports", Note: noPreview},
		{Name: "runtime_ips", Note: noNetwork},
		{Name: "runtime_networks_wireguard", Note: noNetwork},
		{Name: "runtime_networks_upstream_proxy", Note: noNetwork},
		{Name: "runtime_networks_private", Note: noNetwork},
		{Name: "runtime_networks_signed_requests", Note: noNetwork},
		{Name: "runtime_account", Tool: "get_account"},
		{Name: "runtime_account", Action: "get", Tool: "get_account"},
		{Name: "runtime_account", Action: "limits", Tool: "get_limits"},
		{Name: "runtime_account", Action: "referrals", Note: "there are no referrals"},
		{Name: "runtime_account", Action: "sso", Note: "sign-in is set up by the people who run this deployment"},
		{Name: "runtime_account", Action: "compare", Note: noUsage},
		{Name: "runtime_account", Action: "emails", Note: "there are no emails to choose"},
		{Name: "runtime_reservations", Note: noGPU},
		{Name: "runtime_switching_record", Note: "there is nothing to record"},
		{Name: "runtime_audit_list", Note: noAudit},
		{Name: "runtime_secrets", Note: noSecrets},
		{Name: "runtime_jobs", Note: noJobs},
		{Name: "runtime_feedback", Note: noSupport},
		{Name: "runtime_support", Note: noSupport},
		{Name: "runtime_notices", Note: "there are no notices yet"},
		{Name: "runtime_docs_read", Tool: "read_doc"},
		{Name: "search_runtime_docs", Tool: "search_docs"},
		{Name: "read_runtime_doc", Tool: "read_doc"},
		{Name: "list_runtime_docs", Tool: "list_docs"},
	}
}

// renamed are the names that the same service had before it grouped its tools.
func renamed() []Old {
	rows := []Old{
		{Name: "runtime_exec", Tool: "run_command"},
		{Name: "runtime_account_get", Tool: "get_account"},
		{Name: "runtime_limits_get", Tool: "get_limits"},
		{Name: "runtime_sandboxes_network_get", Tool: "get_sandbox", Note: "it shows network"},
		{Name: "runtime_sandboxes_network_set", Note: noNetwork},
		{Name: "runtime_sandboxes_mount", Note: "buckets cannot be mounted yet; run_command can copy to and from them"},
		{Name: "runtime_sandboxes_unmount", Note: "buckets cannot be mounted yet; run_command can copy to and from them"},
		{Name: "runtime_referrals_get", Note: "there are no referrals"},
		{Name: "runtime_account_sso_get", Note: "sign-in is set up by the people who run this deployment"},
		{Name: "runtime_usage_compare", Note: noUsage},
	}
	for _, g := range []struct {
		note, name string
		verbs      []string
	}{
		{noPreview, "runtime_domains", []string{"add", "verify", "list", "remove"}},
		{noPreview, "runtime_ports", []string{"open", "list", "close"}},
		{noNetwork, "runtime_ips", []string{"list", "reserve", "release"}},
		{noNetwork, "runtime_networks_wireguard", []string{"create", "get", "add_peer", "rotate_peer", "remove_peer"}},
		{noNetwork, "runtime_networks_upstream_proxy", []string{"get", "set", "remove"}},
		{noNetwork, "runtime_networks_private", []string{"get", "set"}},
		{noNetwork, "runtime_networks_signed_requests", []string{"get", "set"}},
		{noPreview, "runtime_sandboxes_previews", []string{"create", "list", "rotate", "delete"}},
		{noVolumes, "runtime_volumes", []string{"create", "get", "delete", "backup_get", "backup_policy", "backup_delete"}},
		{noSnapshot, "runtime_snapshots", []string{"create", "get", "delete"}},
		{noSecrets, "runtime_secrets", []string{"set", "list", "delete"}},
		{noSupport, "runtime_support", []string{"message", "read"}},
		{noSupport, "runtime_feedback", []string{"submit", "list"}},
	} {
		for _, verb := range g.verbs {
			rows = append(rows, Old{Name: g.name + "_" + verb, Note: g.note})
		}
	}
	return rows
}
