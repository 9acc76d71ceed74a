package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"
)

// profile is what the driver publishes: devices exactly as they appear in a ResourceSlice, so that
// topology is described in one place outside this program.
type profile struct {
	Driver  string               `json:"driver"`
	Devices []resourceapi.Device `json:"devices"`
}

func readProfile(path string) (profile, error) {
	var result profile
	file, err := os.Open(path)
	if err != nil {
		return result, err
	}
	defer file.Close()
	decoder := json.NewDecoder(file)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&result); err != nil {
		return result, fmt.Errorf("%s: %w", path, err)
	}
	if result.Driver == "" || len(result.Devices) == 0 {
		return result, fmt.Errorf("%s: needs a driver name and at least one device", path)
	}
	return result, nil
}

type driver struct {
	name   string
	node   string
	cdiDir string
	known  map[string]bool
	stop   context.CancelFunc
}

// The Container Device Interface documents, as far as this driver writes them.
type cdiSpec struct {
	Version string      `json:"cdiVersion"`
	Kind    string      `json:"kind"`
	Devices []cdiDevice `json:"devices"`
}

type cdiDevice struct {
	Name           string   `json:"name"`
	ContainerEdits cdiEdits `json:"containerEdits"`
}

type cdiEdits struct {
	Env []string `json:"env"`
}

func (d *driver) kind() string { return d.name + "/claim" }

func (d *driver) specPath(claim types.UID) string {
	return filepath.Join(d.cdiDir, d.name+"-"+string(claim)+".json")
}

// variable names one environment variable per device: with one variable for a list, the second
// request of a container would overwrite the first.
func variable(device string) string {
	suffix := strings.TrimPrefix(device, "gpu-")
	return "SLIPSTREAM_GPU_" + strings.ToUpper(strings.ReplaceAll(suffix, "-", "_")) + "=" + device
}

func (d *driver) prepare(claim *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	spec := cdiSpec{Version: "0.6.0", Kind: d.kind()}
	var devices []kubeletplugin.Device
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver != d.name || result.Pool != d.node {
			continue
		}
		if !d.known[result.Device] {
			return nil, fmt.Errorf("device %q is not one of this node's", result.Device)
		}
		name := string(claim.UID) + "-" + result.Device
		spec.Devices = append(spec.Devices, cdiDevice{
			Name:           name,
			ContainerEdits: cdiEdits{Env: []string{variable(result.Device)}},
		})
		devices = append(devices, kubeletplugin.Device{
			Requests:     []string{result.Request},
			PoolName:     result.Pool,
			DeviceName:   result.Device,
			CDIDeviceIDs: []string{d.kind() + "=" + name},
		})
	}
	if len(devices) == 0 {
		return nil, nil
	}
	return devices, writeAtomically(d.specPath(claim.UID), spec)
}

// writeAtomically hides half-written files from containerd, which watches the directory.
func writeAtomically(path string, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	temporary := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".tmp")
	if err := os.WriteFile(temporary, data, 0o644); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}

func (d *driver) PrepareResourceClaims(
	ctx context.Context, claims []*resourceapi.ResourceClaim,
) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := make(map[types.UID]kubeletplugin.PrepareResult, len(claims))
	for _, claim := range claims {
		devices, err := d.prepare(claim)
		results[claim.UID] = kubeletplugin.PrepareResult{Err: err, Devices: devices}
		klog.FromContext(ctx).Info("prepared", "claim", klog.KObj(claim), "devices", len(devices), "err", err)
	}
	return results, nil
}

func (d *driver) UnprepareResourceClaims(
	ctx context.Context, claims []kubeletplugin.NamespacedObject,
) (map[types.UID]error, error) {
	results := make(map[types.UID]error, len(claims))
	for _, claim := range claims {
		err := os.Remove(d.specPath(claim.UID))
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
		results[claim.UID] = err
	}
	return results, nil
}

func (d *driver) HandleError(ctx context.Context, err error, msg string) {
	klog.FromContext(ctx).Error(err, msg)
	if !errors.Is(err, kubeletplugin.ErrRecoverable) {
		d.stop()
	}
}

func runDRADriver(arguments []string) int {
	flags := flag.NewFlagSet("dra-driver", flag.ContinueOnError)
	profilePath := flags.String("profile", "", "JSON file with the driver name and devices")
	kubeconfig := flags.String("kubeconfig", "", "kubeconfig of the node")
	node := flags.String("node-name", "", "name of the node")
	kubeletRoot := flags.String("kubelet-root-dir", "", "the kubelet's --root-dir")
	cdiDir := flags.String("cdi-dir", "", "directory that containerd reads CDI files from")
	if err := flags.Parse(arguments); err != nil {
		return 2
	}
	for _, required := range []string{"profile", "kubeconfig", "node-name", "kubelet-root-dir", "cdi-dir"} {
		if flags.Lookup(required).Value.String() == "" {
			fmt.Fprintf(os.Stderr, "dra-driver: --%s is required\n", required)
			return 2
		}
	}
	if err := serveDRADriver(*profilePath, *kubeconfig, *node, *kubeletRoot, *cdiDir); err != nil {
		fmt.Fprintln(os.Stderr, "dra-driver:", err)
		return 1
	}
	return 0
}

func serveDRADriver(profilePath, kubeconfig, node, kubeletRoot, cdiDir string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	profile, err := readProfile(profilePath)
	if err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	registry := filepath.Join(kubeletRoot, "plugins_registry")
	data := filepath.Join(kubeletRoot, "plugins", profile.Driver)
	for _, directory := range []string{registry, data, cdiDir} {
		if err := os.MkdirAll(directory, 0o755); err != nil {
			return err
		}
	}
	known := make(map[string]bool, len(profile.Devices))
	for _, device := range profile.Devices {
		known[device.Name] = true
	}
	failed, fail := context.WithCancel(ctx)
	defer fail()
	plugin := &driver{name: profile.Driver, node: node, cdiDir: cdiDir, known: known, stop: fail}
	helper, err := kubeletplugin.Start(ctx, plugin,
		kubeletplugin.KubeClient(client),
		kubeletplugin.NodeName(node),
		kubeletplugin.DriverName(profile.Driver),
		kubeletplugin.RegistrarDirectoryPath(registry),
		kubeletplugin.PluginDataDirectoryPath(data),
	)
	if err != nil {
		return err
	}
	defer helper.Stop()
	pool := resourceslice.Pool{Slices: []resourceslice.Slice{{Devices: profile.Devices}}}
	resources := resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{node: pool}}
	if err := helper.PublishResources(ctx, resources); err != nil {
		return err
	}
	<-failed.Done()
	if ctx.Err() == nil {
		return errors.New("stopped after an error that cannot be retried, see the log above")
	}
	return nil
}
