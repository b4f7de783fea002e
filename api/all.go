package api

import "github.com/berthrun/berth/api/op"

// All gives every operation's definition in the order in which they are shown. A deployment binds exactly these.
func All() []op.Info {
	return []op.Info{
		CreateSandbox.Info(), ListSandboxes.Info(), GetSandbox.Info(), UpdateSandbox.Info(), SetSandboxTimeout.Info(), ExtendSandbox.Info(),
		StartSandbox.Info(), StopSandbox.Info(), DeleteSandbox.Info(),
		PauseSandbox.Info(), WakeSandbox.Info(), ForkSandbox.Info(), SnapshotSandbox.Info(), SwitchSandboxImage.Info(),
		ListSnapshots.Info(), GetSnapshot.Info(), UpdateSnapshot.Info(), DeleteSnapshot.Info(),
		TerminalTicket.Info(), SSH.Info(),
		SandboxMetrics.Info(), SandboxLogs.Info(),
		Exec.Info(), StartProcess.Info(), ListProcesses.Info(), GetProcess.Info(), ProcessOutput.Info(), ProcessInput.Info(), ProcessSignal.Info(),
		ReadFile.Info(), WriteFile.Info(), EditFile.Info(), ListFiles.Info(), StatFile.Info(), MakeDirectory.Info(), MoveFile.Info(), RemoveFile.Info(),
		ListImages.Info(), GetImage.Info(), PullImage.Info(), PushImage.Info(), TagImage.Info(), DeleteImage.Info(), SetRegistry.Info(), ListRegistries.Info(), DeleteRegistry.Info(),
		ListVolumes.Info(), GetVolume.Info(), CreateVolume.Info(), ResizeVolume.Info(), AttachVolume.Info(), DetachVolume.Info(), DeleteVolume.Info(),
		GetConfirmation.Info(), ListConfirmations.Info(), ApproveConfirmation.Info(), RejectConfirmation.Info(),
		CreateBackup.Info(), ListBackups.Info(), GetBackup.Info(), DeleteBackup.Info(), SetBackupPolicy.Info(),
		ListTemplates.Info(), GetTemplate.Info(), BuildTemplate.Info(), UpdateTemplate.Info(), SetTemplateVolumes.Info(), DeleteTemplate.Info(),
		GetBuild.Info(), BuildLogs.Info(), ListBuilds.Info(), CancelBuild.Info(),
		SearchDocs.Info(), ReadDoc.Info(), ListDocs.Info(),
		GetAccount.Info(), ListWorkspaces.Info(), GetLimits.Info(), ListCapabilities.Info(), ListPools.Info(), CreateKey.Info(), ListKeys.Info(), RevokeKey.Info(),
		GetPolicies.Info(), PutPolicies.Info(), ValidatePolicies.Info(), TestPolicies.Info(),
		ListAudit.Info(),
	}
}

// AllStreams gives every stream's definition. A deployment binds exactly these.
func AllStreams() []op.StreamInfo {
	return []op.StreamInfo{
		Terminal.Info(), SSHConnect.Info(),
		DownloadFile.Info(), UploadFile.Info(), FollowProcess.Info(), ImportImage.Info(), ExportImage.Info(),
		UploadContext.Info(), FollowBuild.Info(),
		ExportAudit.Info(),
	}
}
