"""Study S3: which uncertainty measure finds the wrong voxels of a segmentation."""
